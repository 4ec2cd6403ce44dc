"""mcp-use: its agent, whose model is scripted."""

from contextlib import asynccontextmanager

from checks import Told, main
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

# example
from mcp_use import MCPAgent, MCPClient
# end


@asynccontextmanager
async def connect(url):
    model = Script()
    # example
    server = {"url": url} if url else {"command": "isolator", "args": ["serve"]}
    client = MCPClient({"mcpServers": {"isolator": server}})
    agent = MCPAgent(llm=model, client=client, memory_enabled=False)
    # end
    try:
        await agent.initialize()
        yield McpUse(model, agent, client)
    finally:
        await client.close_all_sessions()


class Script(BaseChatModel):
    """A model that calls one tool, and keeps what it is told then."""

    tool: str = ""
    arguments: dict = {}
    answer: Told | None = None

    @property
    def _llm_type(self):
        return "script"

    def bind_tools(self, tools, **more):
        return self

    def _generate(self, messages, *others, **more):
        if isinstance(messages[-1], ToolMessage):
            self.answer = told(messages[-1].content_blocks)
            message = AIMessage("done")
        else:
            message = AIMessage("", tool_calls=[{"id": "call", "name": self.tool, "args": self.arguments}])
        return ChatResult(generations=[ChatGeneration(message=message)])


def told(blocks):
    texts = [block["text"] if block["type"] == "text" else str(block) for block in blocks]
    return Told("\n".join(texts), sum(block["type"] == "image" for block in blocks))


class McpUse:
    def __init__(self, model, agent, client):
        self.model, self.agent, self.client = model, agent, client

    async def ask(self, tool, arguments):
        self.model.tool, self.model.arguments = tool, arguments
        await self.agent.run("Go.")
        return self.model.answer

    async def read(self, uri):
        result = await self.client.get_session("isolator").read_resource(uri)
        return "".join(content.text for content in result.contents)


main(connect, "mcp-use", "langchain", "mcp")
