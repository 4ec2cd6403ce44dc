"""A server that is spoken to by hand, byte by byte: on standard input and output, or over HTTP."""

import json
import subprocess
from collections import defaultdict
from contextlib import asynccontextmanager

import anyio
from server import command, environment

# What the server takes for removing everything, and more.
ENDED_WITHIN_S = 40


class ByHand:
    """The server. Answers are kept by the identifiers of their requests."""

    def __init__(self, process):
        self.process = process
        self.pid = process.pid
        self.answers = defaultdict(list)
        # The methods of notifications.
        self.heard = []
        self._heard = anyio.Event()

    async def send(self, *messages):
        """Writes lines: bytes as they are, anything else as JSON."""
        lines = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in messages]
        await self.process.stdin.send(b"".join(line + b"\n" for line in lines))

    async def begin(self):
        """Says hello, as the older revisions have it."""
        client = {"name": "by-hand", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        await self.send(request("hello", "initialize", hello))
        await self.answer("hello", 30)
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def answer(self, number, within):
        """The one answer to a request."""
        with anyio.fail_after(within):
            while not self.answers[number]:
                await self._heard.wait()
        (answer,) = self.answers[number]
        return answer

    async def all_answers(self, numbers, within):
        """The answers to these requests, each of which is there once."""
        return [await self.answer(number, within) for number in numbers]

    def stop_reading(self):
        """Closes the pipe of its answers. Closing the stream alone would leave it open."""
        self.process._process._transport.get_pipe_transport(1).close()

    async def end(self):
        """Goes away, as a host that has ended does."""
        await self.process.stdin.aclose()

    async def read(self):
        rest = b""
        try:
            async for piece in self.process.stdout:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    if "method" in message:
                        self.heard.append(message["method"])
                    else:
                        self.answers[message.get("id")].append(message)
                self._heard.set()
                self._heard = anyio.Event()
        except anyio.ClosedResourceError:
            # The test does not listen any more.
            pass


def request(number, method, params=None):
    """A request of the protocol."""
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}


def python(number, code, **arguments):
    """A request that runs a program, of any revision."""
    arguments = {"language": "python", "entrypoint_code": code} | arguments
    return request(number, "tools/call", {"name": "execute_code", "arguments": arguments})


def cancel(number):
    """A notification that cancels a request."""
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}


@asynccontextmanager
async def by_hand(state, config, log):
    """Starts a server. It is waited for at the end, however that has come."""
    process = await anyio.open_process(command(config), env=environment(state), stdin=subprocess.PIPE, stderr=log)
    async with process, anyio.create_task_group() as tasks:
        server = ByHand(process)
        tasks.start_soon(server.read)
        try:
            yield server
            await server.end()
            with anyio.fail_after(ENDED_WITHIN_S):
                await process.wait()
        finally:
            tasks.cancel_scope.cancel()


MODERN = "2026-07-28"
CLIENT = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "by-hand", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def post(url, body, method="tools/call", name="execute_code", token=None):
    """Sends a body over its own connection, as the newest revision has it. Returns status and answer."""
    host, port = url.split("/")[2].split(":")
    # The older version of HTTP has neither chunks nor connections that stay.
    head = [f"POST /mcp HTTP/1.0\r\nhost: {host}\r\ncontent-length: {len(body)}\r\ncontent-type: application/json"]
    head += ["accept: application/json, text/event-stream", f"mcp-protocol-version: {MODERN}"]
    head += [f"authorization: Bearer {token}"] if token else []
    head += [f"mcp-method: {method}", f"mcp-name: {name}", "\r\n"]
    async with await anyio.connect_tcp(host, int(port)) as stream:
        await stream.send("\r\n".join(head).encode() + body)
        answer = b"".join([piece async for piece in stream])
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def run(url, number, code):
    """Runs a program over HTTP. Returns status and answer."""
    message = python(number, code)
    message["params"]["_meta"] = CLIENT
    return await post(url, json.dumps(message).encode())


async def tool(url, number, name, **arguments):
    """Calls a tool over HTTP. Returns the data of its answer, which must not say that it failed."""
    message = request(number, "tools/call", {"name": name, "arguments": arguments, "_meta": CLIENT})
    status, body = await post(url, json.dumps(message).encode(), name=name)
    result = json.loads(body)["result"]
    assert status == 200 and not result["isError"], body
    return result["structuredContent"]
