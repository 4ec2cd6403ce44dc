"""smolagents: a CodeAgent whose model is scripted.

Its ToolCallingAgent would demand every argument of a tool, also those that are optional.
"""

import asyncio
from contextlib import asynccontextmanager

from checks import Told, main
from smolagents import ChatMessage, Model
from smolagents.models import MessageRole

# example
from mcp import StdioServerParameters
from smolagents import CodeAgent, MCPClient
# end


@asynccontextmanager
async def connect(url):
    model = Script()
    # example
    server = {"url": url} if url else StdioServerParameters(command="isolator", args=["serve"])
    with MCPClient(server, structured_output=False) as tools:
        agent = CodeAgent(tools, model, verbosity_level=0)
        # Here it can be used.
        # end
        yield Smolagents(model, agent)


class Script(Model):
    """A model that writes code which calls one tool, and keeps what it is told then."""

    def generate(self, messages, **more):
        if messages[-1].role == MessageRole.USER:
            return code(f"print({self.tool}(**{self.arguments!r}))")
        content = messages[-1].content
        text = "\n".join(item.get("text", "") for item in content)
        self.answer = Told(text, sum(item["type"] == "image" for item in content))
        return code("final_answer('done')")


def code(line):
    return ChatMessage(MessageRole.ASSISTANT, f"Thought: Go.\n<code>\n{line}\n</code>")


class Smolagents:
    # Its agents run in the caller's thread, which nothing interrupts.
    cancels = False

    def __init__(self, model, agent):
        self.model, self.agent = model, agent

    async def ask(self, tool, arguments):
        self.model.tool, self.model.arguments = tool, arguments
        await asyncio.to_thread(self.agent.run, "Go.")
        return self.model.answer


main(connect, "smolagents", "mcpadapt", "mcp")
