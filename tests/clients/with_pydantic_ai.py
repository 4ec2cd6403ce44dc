"""pydantic-ai: an agent whose model is a function."""

from contextlib import asynccontextmanager

from checks import Told, main
from pydantic_ai import BinaryContent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

# example
from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
# end


@asynccontextmanager
async def connect(url):
    script = Script()
    model = FunctionModel(script.respond)
    # example
    server = url or StdioTransport(command="isolator", args=["serve"])
    isolator = MCPToolset(server, tool_error_behavior="failed")
    async with Agent(model, toolsets=[isolator]) as agent:
        # Here it can be used.
        # end
        yield PydanticAi(script, agent, isolator)


class Script:
    """A model that calls one tool, and keeps what it is told then."""

    async def respond(self, messages, info):
        parts = messages[-1].parts
        if parts[0].part_kind == "user-prompt":
            return ModelResponse(parts=[ToolCallPart(self.tool, self.arguments)])
        self.answer = told(parts)
        return ModelResponse(parts=[TextPart("done")])


def told(parts):
    texts, pictures = [], 0
    for part in parts:
        texts.append(part.model_response_str() if part.part_kind == "tool-return" else part.model_response())
        files = part.files if part.part_kind == "tool-return" else []
        pictures += sum(isinstance(file, BinaryContent) and file.is_image for file in files)
    return Told("\n".join(texts), pictures)


class PydanticAi:
    def __init__(self, script, agent, toolset):
        self.script, self.agent, self.toolset = script, agent, toolset

    async def ask(self, tool, arguments):
        self.script.tool, self.script.arguments = tool, arguments
        await self.agent.run("Go.")
        return self.script.answer

    async def read(self, uri):
        return await self.toolset.read_resource(uri)


main(connect, "pydantic-ai-slim", "fastmcp-slim", "mcp")
