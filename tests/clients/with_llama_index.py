"""llama-index: a FunctionAgent whose model is scripted."""

from contextlib import AsyncExitStack, asynccontextmanager

from checks import Told, main
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM

# example
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec
from mcp import ClientSession, StdioServerParameters, stdio_client
# end


@asynccontextmanager
async def connect(url):
    script = Script()
    model = MockFunctionCallingLLM(response_generator=script.respond)
    async with AsyncExitStack() as stack:
        # example
        if url:
            client = BasicMCPClient(url, timeout=60)
        else:
            # BasicMCPClient would start a server for each call.
            server = StdioServerParameters(command="isolator", args=["serve"])
            streams = await stack.enter_async_context(stdio_client(server))
            client = await stack.enter_async_context(ClientSession(*streams, read_timeout_seconds=60))
            await client.initialize()
        agent = FunctionAgent(llm=model, tools=await McpToolSpec(client).to_tool_list_async())
        # end
        yield LlamaIndex(script, agent, client)


class Script:
    """A model that calls one tool, and keeps what it is told then."""

    def respond(self, messages, **more):
        if messages[-1].role == "tool":
            self.answer = told(messages[-1].blocks)
            return ChatMessage(role="assistant", content="done")
        call = ToolCallBlock(tool_call_id="call", tool_name=self.tool, tool_kwargs=self.arguments)
        return ChatMessage(role="assistant", blocks=[call])


def told(blocks):
    texts = [block.text for block in blocks if block.block_type == "text"]
    return Told("\n".join(texts), sum(block.block_type == "image" for block in blocks))


class LlamaIndex:
    def __init__(self, script, agent, client):
        self.script, self.agent, self.client = script, agent, client

    async def ask(self, tool, arguments):
        self.script.tool, self.script.arguments = tool, arguments
        run = self.agent.run("Go.")
        try:
            await run
        finally:
            await run.cancel_run()
        return self.script.answer

    async def read(self, uri):
        return "".join(content.text for content in (await self.client.read_resource(uri)).contents)


main(connect, "llama-index-tools-mcp", "llama-index-core", "mcp")
