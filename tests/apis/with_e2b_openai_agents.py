"""openai-agents: a SandboxAgent in a sandbox of E2B. Its model is scripted."""

import io
import json
from pathlib import Path

from agents import Model, ModelResponse, Usage, set_tracing_disabled
from frameworks import main
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

# example
from agents import Runner
from agents.extensions.sandbox import E2BSandboxClient, E2BSandboxClientOptions, E2BSandboxType
from agents.run import RunConfig
from agents.sandbox import SandboxAgent, SandboxRunConfig
# end

set_tracing_disabled(True)


class Script(Model):
    """A model that runs these commands, one in each turn."""

    def __init__(self, *commands):
        self.commands = list(commands)
        self.told = []

    async def get_response(self, system_instructions, input, *others, **more):
        if not isinstance(input, str) and input[-1].get("type") == "function_call_output":
            self.told.append(str(input[-1]["output"]))
        if self.commands:
            arguments = json.dumps({"cmd": self.commands.pop(0)})
            output = ResponseFunctionToolCall(
                call_id=f"call-{len(self.told)}", name="exec_command", arguments=arguments, type="function_call"
            )
        else:
            text = ResponseOutputText(text="done", type="output_text", annotations=[])
            output = ResponseOutputMessage(
                id="done", content=[text], role="assistant", status="completed", type="message"
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *others, **more):
        raise NotImplementedError("nothing here streams")


async def a_sandbox_agent():
    model = Script("echo $((6 * 7)) > a.txt; cat a.txt; pwd", "ls; exit 3")
    task = "Go."
    # example
    agent = SandboxAgent(name="Coder", model=model, instructions="Use the shell.")
    sandbox = SandboxRunConfig(
        client=E2BSandboxClient(),
        options=E2BSandboxClientOptions(sandbox_type=E2BSandboxType.E2B, timeout=300),
    )
    result = await Runner.run(agent, task, run_config=RunConfig(sandbox=sandbox))
    # end
    assert result.final_output == "done"
    first, second = model.told
    assert "42\n/workspace" in first, first
    assert "a.txt" in second and "3" in second, second


async def a_session():
    """What the agent's tools are made of: files, folders, commands, a terminal, and whether the sandbox runs."""
    client = E2BSandboxClient()
    session = await client.create(options=E2BSandboxClientOptions(sandbox_type=E2BSandboxType.CODE_INTERPRETER, timeout=300))
    try:
        await session.start()
        assert await session.running()
        await session.mkdir("folder", parents=True)
        await session.write(Path("folder/a"), io.BytesIO(b"content"))
        assert (await session.read(Path("folder/a"))).read() == b"content"
        assert [Path(entry.path).name for entry in await session.ls("folder")] == ["a"]
        result = await session.exec("cat folder/a; exit 5")
        assert (result.exit_code, result.stdout) == (5, b"content"), result
        update = await session.pty_exec_start("cat", tty=True, yield_time_s=1)
        update = await session.pty_write_stdin(session_id=update.process_id, chars="hello\n", yield_time_s=2)
        assert b"hello" in update.output, update
        await session.pty_terminate_all()
        archive = (await session.persist_workspace()).read()
        assert b"folder/a" in archive, archive[:300]
    finally:
        await session.shutdown()
        await client.delete(session)


main([a_sandbox_agent, a_session], "openai-agents", "e2b", "e2b-code-interpreter")
