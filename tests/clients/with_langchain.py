"""langchain-mcp-adapters: an agent of langchain and langgraph, whose model is scripted."""

from contextlib import asynccontextmanager

from checks import Told, main
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

# example
from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
# end


@asynccontextmanager
async def connect(url):
    model = Script()
    # example
    server = (
        {"transport": "http", "url": url}
        if url
        else {"transport": "stdio", "command": "isolator", "args": ["serve"]}
    )
    async with MultiServerMCPClient({"isolator": server}).session("isolator") as session:
        agent = create_agent(model, await load_mcp_tools(session))
        # Here it can be used.
        # end
        yield Langchain(model, agent, session)


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


class Langchain:
    def __init__(self, model, agent, session):
        self.model, self.agent, self.session = model, agent, session

    async def ask(self, tool, arguments):
        self.model.tool, self.model.arguments = tool, arguments
        await self.agent.ainvoke({"messages": "Go."})
        return self.model.answer

    async def read(self, uri):
        from langchain_mcp_adapters.resources import load_mcp_resources

        return "".join(blob.as_string() for blob in await load_mcp_resources(self.session, uris=[uri]))


main(connect, "langchain-mcp-adapters", "langchain", "langgraph", "mcp")
