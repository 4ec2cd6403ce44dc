// Mastra: an agent whose workspace is a sandbox of E2B. Its model is scripted.

import assert from "node:assert/strict";
import { MastraLanguageModelV2Mock } from "@mastra/core/test-utils/llm-mock";
import { main } from "./checks.mjs";
// example
import { Agent } from "@mastra/core/agent";
import { Workspace } from "@mastra/core/workspace";
import { E2BSandbox } from "@mastra/e2b";
// end

const USAGE = { inputTokens: 1, outputTokens: 1, totalTokens: 2 };

// A model that runs one command, and keeps the answer.
function scripted(told) {
  return new MastraLanguageModelV2Mock({
    async doGenerate({ prompt, tools }) {
      const last = prompt.at(-1);
      if (last.role === "tool") {
        told.push(JSON.stringify(last.content));
        return { content: [{ type: "text", text: "done" }], finishReason: "stop", usage: USAGE, warnings: [] };
      }
      const { name } = tools.find((it) => it.name.includes("execute_command"));
      const input = JSON.stringify({ command: "echo $((6 * 7)); whoami" });
      const call = { type: "tool-call", toolCallId: "call", toolName: name, input };
      return { content: [call], finishReason: "tool-calls", usage: USAGE, warnings: [] };
    },
  });
}

async function agent() {
  const told = [];
  const model = scripted(told);
  const task = "Go.";
  // example
  const workspace = new Workspace({ sandbox: new E2BSandbox({ template: "base" }) });
  const agent = new Agent({ id: "coder", name: "coder", instructions: "Use the shell.", model, workspace });
  const answer = await agent.generate(task);
  await workspace.destroy();
  // end
  assert.equal(answer.text, "done");
  assert.match(told[0], /42/);
}

async function stopAndStart() {
  const sandbox = new E2BSandbox({ id: "kept", template: "base" });
  await sandbox._start();
  assert.equal((await sandbox.executeCommand("echo", ["a"])).stdout, "a\n");
  assert.equal((await sandbox.executeCommand("sh", ["-c", "echo kept > file; exit 4"])).exitCode, 4);
  await sandbox._stop();
  const again = new E2BSandbox({ id: "kept", template: "base" });
  await again._start();
  assert.equal((await again.executeCommand("cat", ["file"])).stdout, "kept\n");
  await again._destroy();
}

await main([agent, stopAndStart], "@mastra/e2b", "@mastra/core", "e2b");
