"""Several servers with the same clients: each has a name, which is in its handles, and says of the handles of others where they are."""

import base64
import urllib.parse
from contextlib import AsyncExitStack

import anyio
import httpx2 as httpx
import pytest
from by_hand import CLIENT, MODERN
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from server import configuration, listening

pytestmark = pytest.mark.any_engine

DOMAIN = "sandbox.example"
DIGITS = "0123456789abcdef" * 2
HEADERS = {"session": "Mcp-Param-Session", "replay": "Mcp-Param-Session", "handle": "Mcp-Param-Handle"}
ACCEPT = {"accept": "application/json, text/event-stream"}
GONE = [
    ("execute_code", {"entrypoint_code": "1"}),
    ("run_command", {"command": "true"}),
    ("rewind_session", {"cells": 1}),
    ("interrupt_session", {}),
    ("close_session", {}),
]


class Node:
    """A node and a client of it, which sends what it is told."""

    def __init__(self, name, url, log):
        self.name, self.url, self.path = name, url, log
        self.http = httpx.AsyncClient(base_url=url.removesuffix("/mcp"), timeout=60)

    def log(self):
        return self.path.read_text()

    async def request(self, method, path, **options):
        """An answer. Each has the name of the node."""
        answer = await self.http.request(method, path, **options)
        assert answer.headers["isolator-node"] == self.name, answer.headers
        return answer

    async def modern(self, method, name, params, headers=None):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params | {"_meta": CLIENT}}
        sent = ACCEPT | {"mcp-protocol-version": MODERN, "mcp-method": method, "mcp-name": name}
        return await self.request("POST", "/mcp", json=body, headers=sent | (headers or {}))

    async def call(self, tool, arguments, headers=None):
        """Calls a tool. By default handles are repeated in headers."""
        if headers is None:
            headers = {HEADERS[name]: value for name, value in arguments.items() if name in HEADERS}
        return await self.modern("tools/call", tool, {"name": tool, "arguments": arguments}, headers)

    async def data(self, tool, **arguments):
        answer = await self.call(tool, arguments)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]["structuredContent"]

    async def read(self, uri):
        return await self.modern("resources/read", uri, {"uri": uri})

    async def initialize(self):
        """Opens a protocol session of an older revision."""
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        answer = await self.request("POST", "/mcp", json=body, headers=ACCEPT)
        return answer.headers["mcp-session-id"]

    async def list_in(self, session, method="POST"):
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
        headers = ACCEPT | {"mcp-session-id": session, "mcp-protocol-version": "2025-06-18"}
        return await self.request(method, "/mcp", json=body if method == "POST" else None, headers=headers)


@pytest.fixture(scope="module")
async def nodes(anyio_backend, tmp_path_factory):
    """Two nodes with a configuration that differs in the name alone."""
    async with AsyncExitStack() as stack:
        nodes = []
        for name in ["n1", "n2"]:
            folder = tmp_path_factory.mktemp(name)
            config = configuration(
                folder,
                node={"name": name},
                languageSettings={"go": {"enabled": False}, "javascript": {"enabled": False}},
                results={"detachAfter": "1s"},
                apis={"e2b": {"domain": DOMAIN}},
            )
            log = (folder / "log").open("w", buffering=1)
            stack.callback(log.close)
            url = await stack.enter_async_context(listening(folder, config, log))
            nodes.append(Node(name, url, folder / "log"))
        yield nodes


def is_lost(data, node, here):
    assert data["status"] == "session_gone" and data["node"] == node, data
    said = f"it is on the node {node}, and this is {here}" if node != here else f"{node} was started again since"
    assert said in data["reason"], data
    return True


async def test_a_handle_of_another_node_is_gone_on_every_front(nodes):
    one, two = nodes
    session = (await one.data("open_session", language="python"))["session"]
    code = "import time; open('a', 'w').write('a'); print('b' * 200_000, flush=True); time.sleep(2)"
    running = await one.data("execute_code", language="python", entrypoint_code=code)
    done = await one.data("get_result", handle=running["handle"])
    while done["status"] == "running":
        done = await one.data("get_result", handle=running["handle"])
    assert done["status"] == "success", done
    kept = done["stdout_uri"]
    assert session.startswith("n1-") and running["handle"].startswith("n1-") and "/n1-" in kept

    for tool, arguments in GONE:
        assert is_lost(await two.data(tool, session=session, **arguments), "n1", "n2")
    assert is_lost(await two.data("open_session", language="python", replay=session), "n1", "n2")
    assert is_lost(await two.data("get_result", handle=running["handle"]), "n1", "n2")
    for uri in [f"isolator://sessions/{session}/files", f"isolator://sessions/{session}/files/a", kept]:
        assert (await one.read(uri)).status_code == 200
        error = (await two.read(uri)).json()["error"]
        assert error["data"]["node"] == "n1" and "it is on the node n1, and this is n2" in error["message"], error
    # All of them are where they were.
    assert (await one.data("execute_code", session=session, entrypoint_code="6 * 7"))["result"] == "42"
    assert await one.data("close_session", session=session) == {"closed": True}


async def test_a_protocol_session_of_another_node_is_not_found_and_the_answer_says_where_it_is(nodes):
    one, two = nodes
    session = await one.initialize()
    assert session.startswith("n1-") and (await one.list_in(session)).status_code == 200
    for method in ["POST", "GET", "DELETE"]:
        answer = await two.list_in(session, method)
        assert answer.status_code == 404 and is_lost(answer.json()["error"]["data"], "n1", "n2")
    assert (await one.list_in(session, "DELETE")).status_code == 204
    assert (await one.list_in(session)).status_code == 404


async def test_a_sandbox_of_another_node_is_gone_for_clients_of_e2b(nodes):
    one, two = nodes
    made = (await one.request("POST", "/sandboxes", json={"templateID": "base"})).json()
    id, token = made["sandboxID"], made["envdAccessToken"]
    assert all(text.startswith("n1-") for text in [id, token, made["trafficAccessToken"]])
    until = {"timeout": 60}
    for method, path, body in [
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/timeout", until),
        ("POST", "/connect", until),
        ("POST", "/pause", {}),
    ]:
        answer = await two.request(method, f"/sandboxes/{id}{path}", json=body)
        assert answer.status_code == 404 and answer.json()["node"] == "n1", answer.text
    ways = [
        {"e2b-sandbox-id": id, "x-access-token": token},
        {"host": f"49983-{id}.{DOMAIN}", "x-access-token": token},
        {"x-access-token": token},
    ]
    for headers in ways:
        for method, path in [("GET", "/files?path=a"), ("POST", "/filesystem.Filesystem/Stat")]:
            body = {"path": "/home/user"} if method == "POST" else None
            answer = await two.request(method, path, json=body, headers=headers)
            said = answer.json()
            assert answer.status_code == 502 and said["node"] == "n1", answer.text
            assert "was not found: it is on the node n1, and this is n2" in said["message"], said
            assert token not in answer.text
        there = await one.request("POST", "/filesystem.Filesystem/ListDir", json={"path": "/"}, headers=headers)
        assert there.status_code == 200, there.text
    assert (await one.request("DELETE", f"/sandboxes/{id}")).status_code == 204


async def test_a_node_that_was_started_again_says_so(nodes):
    _, two = nodes
    handle = f"n2-{DIGITS}"
    for tool, arguments in GONE:
        assert is_lost(await two.data(tool, session=handle, **arguments), "n2", "n2")
    assert is_lost(await two.data("get_result", handle=handle), "n2", "n2")
    assert (await two.list_in(handle)).status_code == 404
    answer = await two.request("GET", f"/sandboxes/{handle}")
    assert answer.status_code == 404 and "n2 was started again since" in answer.json()["message"]


async def test_a_header_must_agree_with_the_body(nodes):
    one, _ = nodes
    session = (await one.data("open_session", language="python"))["session"]
    other = f"n2-{DIGITS}"
    long = {"entrypoint_code": "1 + 1 #" + " " * 200_000}
    for more in [{"entrypoint_code": "1 + 1"}, long]:
        arguments = {"session": session} | more
        for headers in [{HEADERS["session"]: other}, {}, {HEADERS["session"]: "=?base64?!?="}]:
            answer = await one.call("execute_code", arguments, headers)
            assert answer.status_code == 400 and answer.json()["error"]["code"] == -32020, answer.text
        # One that has no argument to agree with would lead a balancer to another node.
        answer = await one.call("execute_code", {"language": "python"} | more, {HEADERS["session"]: other})
        assert answer.status_code == 400 and answer.json()["error"]["code"] == -32020, answer.text
        assert (await one.data("execute_code", **arguments))["result"] == "2"
    assert await one.data("close_session", session=session) == {"closed": True}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_finds_its_handles_on_a_node(nodes, mode):
    one, _ = nodes
    async with Client(streamable_http_client(one.url), mode=mode) as client:
        session = (await client.call_tool("open_session", {"language": "python"})).structured_content["session"]
        await client.list_tools()
        for code in ["x = 6", "x = x * 7 #" + " " * 100_000]:
            ran = await client.call_tool("execute_code", {"session": session, "entrypoint_code": code})
            assert ran.structured_content["status"] == "success", ran
        sleeping = {"session": session, "entrypoint_code": "import time; time.sleep(2); x"}
        running = (await client.call_tool("execute_code", sleeping)).structured_content
        done = running
        with anyio.fail_after(60):
            while done["status"] == "running":
                done = (await client.call_tool("get_result", {"handle": running["handle"]})).structured_content
        assert done["result"] == "42"
        assert (await client.call_tool("close_session", {"session": session})).structured_content == {"closed": True}


HOSTILE = [
    "",
    "-",
    "n2-",
    f"-{DIGITS}",
    f"N2-{DIGITS}",
    f"n2.{DIGITS}",
    f"127.0.0.1:22-{DIGITS}",
    f"../../etc/passwd-{DIGITS}",
    f"n2.evil.example/-{DIGITS}",
    f"n2%0d%0aX-Evil: 1-{DIGITS}",
    f"$(reboot)-{DIGITS}",
    f"nø2-{DIGITS}",
    f"n2\r\nx-evil: 1-{DIGITS}",
    "n" * 25 + f"-{DIGITS}",
    "n" * (1 << 20) + f"-{DIGITS}",
    "\u202en2-" + DIGITS,
]


async def test_a_handle_that_no_node_has_made_is_no_handle(nodes):
    one, _ = nodes
    for text in HOSTILE:
        shown = text[:40]
        for tool, field in [*((tool, "session") for tool, _ in GONE), ("get_result", "handle"), ("open_session", "replay")]:
            more = dict(GONE).get(tool, {}) | ({"language": "python"} if tool == "open_session" else {})
            answer = await one.call(tool, {field: text} | more, headers=repeated(field, text))
            said = answer.json()["result"]["structuredContent"]
            # Text that is left out runs in a sandbox of its own, or opens a session.
            if text.strip():
                assert said["status"] == "invalid_arguments" and "node" not in said, (tool, shown, said)
                assert len(answer.text) < 4096, (tool, shown)
        quoted = urllib.parse.quote(text, safe="")[:8000]
        for uri in [f"isolator://sessions/{quoted}/files", f"isolator://runs/{quoted}/stdout"]:
            answer = await one.modern("resources/read", uri, {"uri": uri})
            assert "node" not in answer.json()["error"]["data"], shown
        answer = await one.request("GET", f"/sandboxes/{quoted}")
        assert answer.status_code in [404, 501] and "on the node" not in answer.text, shown
        if text.isascii() and text.isprintable() and len(text) < 10_000:
            assert (await one.list_in(text)).status_code in (404, 400, 422), shown
            for headers in [{"e2b-sandbox-id": text, "x-access-token": "x"}, {"x-access-token": text}]:
                answer = await one.request("GET", "/files?path=a", headers=headers)
                assert answer.status_code in (401, 502) and "on the node" not in answer.text, (shown, answer.text)
    assert "evil" not in "".join(line for line in one.log().splitlines() if line.startswith(("x-evil", "X-Evil")))
    assert (await one.data("execute_code", language="python", entrypoint_code="print(1)"))["stdout"] == "1\n"


def repeated(field, text):
    """The header as clients write it. One that is too long for a header is left out: what is taken out of a long message has none."""
    encoded = "=?base64?" + base64.b64encode(text.encode()).decode() + "?="
    return {HEADERS[field]: encoded} if len(encoded) < 1024 else {}
