// The newest SDKs for JavaScript: e2b and @e2b/code-interpreter.
//
// It prints one JSON object with the versions and the outcome of each check: "works" or "fails: …". The address and the key
// come from the variables that every SDK of E2B reads.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
// example
import { Sandbox } from "@e2b/code-interpreter";
// end
import { CommandExitError, NotFoundError, TimeoutError } from "e2b";

const WITHIN_MS = 90_000;
const TIMEOUT_MS = 300_000;
const PACKAGES = ["e2b", "@e2b/code-interpreter"];

const create = (options = {}) => Sandbox.create({ timeoutMs: TIMEOUT_MS, ...options });

const checks = {
  async example() {
    const printed = [];
    const console = { log: (text) => printed.push(text) };
    // example
    const sandbox = await Sandbox.create();
    await sandbox.runCode("x = 1");
    const execution = await sandbox.runCode("x += 1; x");
    console.log(execution.text); // 2

    await sandbox.files.write("data.csv", "a,b\n1,2\n");
    const result = await sandbox.commands.run("wc -l data.csv");
    console.log(result.stdout); // 2 data.csv
    await sandbox.kill();
    // end
    assert.deepEqual(printed, ["2", "2 data.csv\n"]);
  },

  async lifecycle() {
    const sandbox = await create({ metadata: { check: "lifecycle" } });
    assert.equal(await sandbox.isRunning(), true);
    const info = await sandbox.getInfo();
    assert.equal(info.sandboxId, sandbox.sandboxId);
    assert.deepEqual(info.metadata, { check: "lifecycle" });
    const again = await Sandbox.connect(sandbox.sandboxId);
    assert.equal((await again.commands.run("echo hello")).stdout, "hello\n");
    const page = Sandbox.list({ query: { metadata: { check: "lifecycle" } } });
    assert.deepEqual(
      (await page.nextItems()).map((it) => it.sandboxId),
      [sandbox.sandboxId],
    );
    assert.equal(await sandbox.kill(), true);
    assert.equal(await sandbox.isRunning(), false);
    await assert.rejects(Sandbox.connect(sandbox.sandboxId), NotFoundError);
  },

  async cells(sandbox) {
    await sandbox.runCode("x = 20");
    const seen = [];
    const execution = await sandbox.runCode("print('printed')\nx + 1", { onStdout: (it) => seen.push(it.line) });
    assert.equal(execution.text, "21");
    assert.equal(seen.join(""), "printed\n");
    const failed = await sandbox.runCode("1 / 0");
    assert.equal(failed.error.name, "ZeroDivisionError");
    assert.match(failed.error.traceback, /division by zero/);
  },

  async shown(sandbox) {
    const table = await sandbox.runCode("import pandas as pd\npd.DataFrame({'a': [1, 2]})");
    assert.match(table.results[0].html, /<table/);
    const plot = await sandbox.runCode("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()");
    assert.match(plot.results[0].png, /^iVBOR/);
  },

  async contexts(sandbox) {
    const context = await sandbox.createCodeContext({ cwd: "/tmp" });
    assert.equal((await sandbox.runCode("import os; os.getcwd()", { context })).text, "/tmp");
    assert.ok((await sandbox.listCodeContexts()).some((it) => it.id === context.id));
    await sandbox.removeCodeContext(context);
  },

  async commands(sandbox) {
    const result = await sandbox.commands.run("echo out; echo err >&2", { envs: { A: "b" } });
    assert.deepEqual([result.stdout, result.stderr, result.exitCode], ["out\n", "err\n", 0]);
    await assert.rejects(sandbox.commands.run("exit 7"), (error) => {
      assert.ok(error instanceof CommandExitError);
      return error.exitCode === 7;
    });
    await assert.rejects(sandbox.commands.run("sleep 60", { timeoutMs: 1000 }), TimeoutError);
    const handle = await sandbox.commands.run("sleep 60", { background: true });
    assert.equal(await handle.kill(), true);
    await assert.rejects(handle.wait(), CommandExitError);
    const reader = await sandbox.commands.run("read line; echo got $line", { background: true, stdin: true });
    await sandbox.commands.sendStdin(reader.pid, "hello\n");
    assert.equal((await reader.wait()).stdout, "got hello\n");
  },

  async files(sandbox) {
    const { files } = sandbox;
    assert.equal((await files.write("folder/a.txt", "text é")).path, "/home/user/folder/a.txt");
    assert.equal(await files.read("folder/a.txt"), "text é");
    assert.equal(await files.exists("folder/b.txt"), false);
    assert.deepEqual(
      (await files.list("folder")).map((it) => it.name),
      ["a.txt"],
    );
    await files.rename("folder/a.txt", "folder/c.txt");
    await assert.rejects(files.read("folder/a.txt"), NotFoundError);
    const data = new Uint8Array(10_000_000).map((_, index) => index % 251);
    await files.write("large", data.buffer);
    assert.equal(Buffer.compare(await files.read("large", { format: "bytes" }), data), 0);
    await files.remove("folder");
    await files.remove("large");
  },

  async watched(sandbox) {
    const events = [];
    await sandbox.files.makeDir("watched");
    const watcher = await sandbox.files.watchDir("watched", (event) => events.push(event));
    await sandbox.files.write("watched/new", "1");
    await until(() => events.some((it) => it.name === "new" && it.type === "create"));
    await watcher.stop();
  },

  async terminal(sandbox) {
    let shown = "";
    const handle = await sandbox.pty.create({
      cols: 91,
      rows: 24,
      onData: (data) => (shown += Buffer.from(data).toString()),
    });
    await sandbox.pty.sendInput(handle.pid, new TextEncoder().encode("stty size; exit 3\n"));
    await assert.rejects(handle.wait(), (error) => error.exitCode === 3);
    assert.match(shown, /24 91/);
  },

  async pauseAndConnect() {
    const sandbox = await create();
    await sandbox.runCode("kept = 42");
    await sandbox.pause();
    const again = await sandbox.connect();
    assert.equal((await again.runCode("kept")).text, "42");
    await again.kill();
  },

  async signedAddresses(sandbox) {
    await sandbox.files.write("signed", "content");
    const answer = await fetch(await sandbox.downloadUrl("signed", { useSignatureExpiration: 60_000 }));
    assert.equal(await answer.text(), "content");
    const form = new FormData();
    form.append("file", new Blob(["by a form"]), "any");
    const url = await sandbox.uploadUrl("uploaded", { useSignatureExpiration: 60_000 });
    assert.equal((await fetch(url, { method: "POST", body: form })).status, 200);
    assert.equal(await sandbox.files.read("uploaded"), "by a form");
  },

  async refused(sandbox) {
    await assert.rejects(create({ network: { allowOut: ["1.1.1.1"] } }), /network/i);
    await assert.rejects(create({ volumeMounts: { "/data": "volume" } }), /volume/i);
    await assert.rejects(Sandbox.create("no-such-template"), /no-such-template/);
    await assert.rejects(sandbox.createSnapshot(), /snapshot/i);
  },
};

async function until(condition) {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 50));
}

async function outcome(check, sandbox) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`there is no answer within ${WITHIN_MS} ms`)), WITHIN_MS);
  });
  try {
    await Promise.race([check(sandbox), late]);
    return "works";
  } catch (error) {
    if (process.env.CHECKS_DEBUG) console.error(error);
    return `fails: ${error.name}: ${String(error.message).split("\n")[0].slice(0, 300)}`;
  } finally {
    clearTimeout(timer);
  }
}

const outcomes = {};
const wanted = (process.env.CHECKS ?? "").split(" ").filter(Boolean);
const sandbox = await create();
try {
  for (const [name, check] of Object.entries(checks))
    if (!wanted.length || wanted.includes(name)) outcomes[name] = await outcome(check, sandbox);
} finally {
  await sandbox.kill();
}
const require = createRequire(import.meta.url);
const versionOf = (name) => require(`${require.resolve.paths(name)[0]}/${name}/package.json`).version;
console.log(JSON.stringify({ versions: Object.fromEntries(PACKAGES.map((it) => [it, versionOf(it)])), checks: outcomes }));
// A stream that did not end must not keep the process alive.
process.exit();
