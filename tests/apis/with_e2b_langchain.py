"""langchain-e2b: LangChain's own tests of sandboxes for Deep Agents, and an agent whose model is scripted."""

import asyncio
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from frameworks import main
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage

# example
from deepagents import create_deep_agent
from e2b import Sandbox
from langchain_e2b import E2BSandbox
# end

# The class of tests is LangChain's; a subclass says how to get a sandbox.
STANDARD = '''
import pytest
from e2b import Sandbox
from langchain_e2b import E2BSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests


class TestStandard(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        sandbox = Sandbox.create(timeout=600)
        try:
            yield E2BSandbox(sandbox=sandbox)
        finally:
            sandbox.kill()
'''


class Script(GenericFakeChatModel):
    """A model that gives these messages. The agent tells it its tools, which it knows already."""

    def bind_tools(self, tools, **more):
        return self


def calls(tool, **arguments):
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"{tool}-1"}])


def agent():
    model = Script(
        messages=iter(
            [
                calls("write_file", file_path="/home/user/a.py", content="print(6 * 7)\n"),
                calls("execute", command="python3 /home/user/a.py; exit 3"),
                calls("read_file", file_path="/home/user/a.py"),
                AIMessage("done"),
            ]
        )
    )
    task = HumanMessage("Go.")
    # example
    sandbox = Sandbox.create()
    agent = create_deep_agent(model=model, backend=E2BSandbox(sandbox=sandbox))
    answer = agent.invoke({"messages": [task]})
    sandbox.kill()
    # end
    told = "\n".join(str(message.content) for message in answer["messages"])
    for part in ("42", "exit code 3", "print(6 * 7)"):
        assert part in told, told


async def a_deep_agent():
    await asyncio.to_thread(agent)


async def standard_tests():
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_standard.py").write_text(STANDARD)
        command = [sys.executable, "-m", "pytest", "-q", "-rf", "--tb=short", "-p", "no:cacheprovider", "--asyncio-mode=auto", folder]
        run = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    failed = re.findall(r"^FAILED \S+::(\S+)", run.stdout, re.MULTILINE)
    assert not failed, f"{', '.join(failed)}\n{run.stdout}"
    assert re.search(r"^\d+ passed", run.stdout, re.MULTILINE), run.stdout + run.stderr


main([a_deep_agent, standard_tests], "langchain-e2b", "deepagents", "langchain-tests", "e2b")
