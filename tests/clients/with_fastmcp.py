"""fastmcp's client. It has no agent, so what it returns is what a program hands to its model."""

from contextlib import asynccontextmanager

from checks import Told, main

# example
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
# end


@asynccontextmanager
async def connect(url):
    # example
    server = url or StdioTransport(command="isolator", args=["serve"])
    async with Client(server, timeout=60) as client:
        # Here it can be used.
        # end
        yield Fastmcp(client)


class Fastmcp:
    def __init__(self, client):
        self.client = client

    async def ask(self, tool, arguments):
        result = await self.client.call_tool(tool, arguments, raise_on_error=False)
        kinds = [block.type for block in result.content]
        texts = [block.model_dump_json() if block.type != "text" else block.text for block in result.content]
        return Told("\n".join(texts), kinds.count("image"))

    async def read(self, uri):
        return "".join(content.text for content in await self.client.read_resource(uri))


main(connect, "fastmcp", "mcp")
