"""crewai: an agent with the tools of crewai-tools, whose model is scripted."""

import asyncio
import json
from contextlib import asynccontextmanager

from checks import Told, main
from crewai import BaseLLM

# example
from crewai import Agent
from crewai_tools import MCPServerAdapter
from mcp import StdioServerParameters
# end


@asynccontextmanager
async def connect(url):
    model = Script(model="script")
    # example
    server = (
        {"url": url, "transport": "streamable-http"}
        if url
        else StdioServerParameters(command="isolator", args=["serve"])
    )
    with MCPServerAdapter(server) as tools:
        agent = Agent(role="Programmer", goal="Answer", backstory="You write programs.", llm=model, tools=tools)
        # Here it can be used.
        # end
        yield Crewai(model, agent)


class Script(BaseLLM):
    """A model that calls one tool, and keeps what it is told then."""

    tool: str = ""
    arguments: dict = {}
    answer: Told | None = None

    def call(self, messages, *others, **more):
        # The framework appends what the tool has returned to what the model has said.
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        if not said:
            return f"Thought: Go.\nAction: {self.tool}\nAction Input: {json.dumps(self.arguments)}"
        self.answer = Told(said[-1].partition("\nObservation:")[2])
        return "Thought: I know.\nFinal Answer: done"

    def supports_function_calling(self):
        return False


class Crewai:
    # Its agents run in the caller's thread, which nothing interrupts.
    cancels = False

    def __init__(self, model, agent):
        self.model, self.agent = model, agent

    async def ask(self, tool, arguments):
        self.model.tool, self.model.arguments = tool, arguments
        await asyncio.to_thread(self.agent.kickoff, "Go.")
        return self.model.answer


main(connect, "crewai-tools", "crewai", "mcpadapt", "mcp")
