"""e2b-adk: the plugin for Google's ADK. The agent's model is scripted."""

from frameworks import main
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types

# example
from e2b_adk import E2BPlugin
from google.adk.agents import Agent
from google.adk.apps import App
from google.adk.runners import InMemoryRunner
# end

CALLS = [
    ("run_code", {"code": "x = 20\nprint('printed')\nx + 1"}),
    ("run_code", {"code": "x / 0"}),
    ("write_file", {"path": "folder/a.txt", "content": "a\nb\n"}),
    ("read_file", {"path": "folder/a.txt"}),
    ("list_files", {"path": "folder"}),
    ("run_command", {"command": "wc -l folder/a.txt; exit 3"}),
    ("start_background_command", {"command": "sleep 60"}),
]


class Script(BaseLlm):
    """A model that makes these calls, one in each turn."""

    told: list = []

    async def generate_content_async(self, llm_request, stream=False):
        for part in llm_request.contents[-1].parts:
            if part.function_response:
                self.told.append(part.function_response.response)
        if len(self.told) < len(CALLS):
            name, arguments = CALLS[len(self.told)]
            part = types.Part.from_function_call(name=name, args=arguments)
        else:
            part = types.Part(text="done")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def a_plugin():
    model = Script(model="script")
    task = "Go."
    # example
    plugin = E2BPlugin()
    agent = Agent(name="coder", model=model, tools=plugin.get_tools())
    app = App(name="demo", root_agent=agent, plugins=[plugin])
    async with InMemoryRunner(app=app) as runner:
        await runner.run_debug(task, quiet=True)
    # end
    code, error, written, read, listed, command, background = model.told
    assert (code["stdout"], code["text"]) == ("printed\n", "21"), code
    assert "ZeroDivisionError" in str(error["error"]), error
    assert written["success"] and read["content"] == "a\nb\n", (written, read)
    assert [entry["name"] for entry in listed["entries"]] == ["a.txt"], listed
    assert (command["stdout"], command["exit_code"]) == ("2 folder/a.txt\n", 3), command
    assert background["success"] and background["pid"] > 0, background


main([a_plugin], "e2b-adk", "google-adk", "e2b-code-interpreter")
