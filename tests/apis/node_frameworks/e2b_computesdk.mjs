// ComputeSDK with its provider for E2B.

import assert from "node:assert/strict";
import { main } from "./checks.mjs";
// example
import { e2b } from "@computesdk/e2b";
import { compute } from "computesdk";
// end

async function sandbox() {
  // example
  compute.setConfig({ provider: e2b({ apiKey: process.env.E2B_API_KEY }) });

  const sandbox = await compute.sandbox.create();
  await sandbox.filesystem.writeFile("/tmp/hello.py", "print('Hello')");
  const result = await sandbox.runCommand("python /tmp/hello.py");
  await sandbox.destroy();
  // end
  assert.deepEqual([result.stdout, result.exitCode], ["Hello\n", 0]);
}

async function filesAndCommands() {
  const sdk = e2b({ apiKey: process.env.E2B_API_KEY });
  const sandbox = await sdk.sandbox.create();
  const { filesystem } = sandbox;
  await filesystem.mkdir("/tmp/data");
  await filesystem.writeFile("/tmp/data/a", "content");
  assert.equal(await filesystem.readFile("/tmp/data/a"), "content");
  assert.deepEqual(
    (await filesystem.readdir("/tmp/data")).map((it) => it.name),
    ["a"],
  );
  assert.equal(await filesystem.exists("/tmp/data/b"), false);
  await filesystem.remove("/tmp/data");
  const heredoc = await sandbox.runCommand("python - <<'PY'\nimport pandas as pd\nprint(pd.DataFrame({'a': [1, 2]}).a.sum())\nPY");
  assert.equal(heredoc.stdout, "3\n");
  const failed = await sandbox.runCommand("echo $A; exit 3", { env: { A: "b" }, cwd: "/tmp" });
  assert.equal(failed.exitCode, 3);
  assert.ok((await sdk.sandbox.list()).some((it) => it.sandboxId === sandbox.sandboxId));
  await sandbox.destroy();
  assert.equal(await sdk.sandbox.getById(sandbox.sandboxId), null);
}

await main([sandbox, filesAndCommands], "@computesdk/e2b", "computesdk", "e2b");
