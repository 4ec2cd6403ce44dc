"""HTTP as clients and proxies of all kinds speak it, byte by byte: what they accept, how they wait, and how they go away."""

import json
import os
import re
import socket
import ssl
import subprocess
import time
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import engine
import pytest
from by_hand import CLIENT, MODERN, post, python, request, run
from certificates import certificate
from cryptography import x509
from faults import NO_POOL, configuration
from server import command, environment, instances, listening, tokens, until

pytestmark = pytest.mark.any_engine

BOTH = "application/json, text/event-stream"


@asynccontextmanager
async def serving(folder, started_by=(), **settings):
    """A server without pools, and its log."""
    config = configuration(folder, pool=NO_POOL, **settings)
    path = folder / "log"
    with path.open("w") as log:
        async with listening(folder, config, log, started_by) as url:
            yield url, lambda: (log.flush(), path.read_text())[1]


def place(url):
    """Host and port of an address."""
    host, port = url.split("/")[2].split(":")
    return host, int(port)


class Connection:
    """A connection that is kept between requests."""

    def __init__(self, stream, host):
        self.stream = stream
        self.host = host
        self.read = b""

    async def send(self, method, path="/mcp", body=None, version="1.1", accept=BOTH, **headers):
        """Sends a request. Headers are written with underscores."""
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/{version}", f"host: {self.host}"]
        if body is not None:
            lines += [f"content-length: {len(content)}", "content-type: application/json"]
        if accept is not None:
            lines.append(f"accept: {accept}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.stream.send("\r\n".join([*lines, "", ""]).encode() + content)

    async def call(self, code, version="1.1", accept=BOTH, path="/mcp", **arguments):
        """Sends a call of the newest revision."""
        message = python(1, code, **arguments)
        message["params"]["_meta"] = CLIENT
        names = {"mcp_protocol_version": MODERN, "mcp_method": "tools/call", "mcp_name": "execute_code"}
        await self.send("POST", path, message, version, accept, **names)

    async def until(self, pattern, within=30):
        """Reads until something has come."""
        with anyio.fail_after(within):
            while not (found := re.search(pattern, self.read, re.DOTALL)):
                self.read += await self.stream.receive()
        return found

    async def rest(self, within=30):
        """Reads to the end, and returns all that has come."""
        with anyio.fail_after(within):
            async for piece in self.stream:
                self.read += piece
        return self.read


@asynccontextmanager
async def connected(url):
    host, port = place(url)
    async with await anyio.connect_tcp(host, port) as stream:
        yield Connection(stream, host)


def open_connections(url):
    """How many connections a server has that it has not closed, as the kernel tells."""
    port = f":{place(url)[1]:04X}"
    fields = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # "established", and "closed by the other side".
    return sum(local.endswith(port) and state in ("01", "08") for _, local, _, state, *_ in fields)


def hello(revision):
    """The request that opens a session."""
    client = {"name": "by-hand", "version": "1"}
    return request(0, "initialize", {"protocolVersion": revision, "capabilities": {}, "clientInfo": client})


async def opened(url, revision):
    """A new session: its name, and the answer."""
    async with connected(url) as connection:
        await connection.send("POST", body=hello(revision), version="1.0")
        answer = await connection.rest()
    session = re.search(rb"mcp-session-id: (\S+)", answer)[1].decode()
    async with connected(url) as connection:
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await connection.send("POST", body=ready, version="1.0", mcp_session_id=session)
        assert b" 202 " in await connection.rest()
    return session, answer


@pytest.mark.parametrize(("revision", "is_primed"), [("2025-06-18", False), ("2025-11-25", True)])
async def test_events_without_data_go_only_to_clients_that_can_read_them(tmp_path, revision, is_primed):
    async with serving(tmp_path) as (url, _):
        session, answer = await opened(url, revision)
        names = {"mcp_session_id": session, "mcp_protocol_version": revision}
        async with connected(url) as called:
            await called.send("POST", body=python(1, "print(6 * 7)"), version="1.0", **names)
            called = await called.rest()
        async with connected(url) as stream:
            await stream.send("GET", accept="text/event-stream", **names)
            await stream.until(rb"text/event-stream.*\r\n\r\n")
            with anyio.move_on_after(0.3):
                await stream.rest()
        for text in (answer, called, stream.read):
            assert (b"data: \n" in text) == is_primed, text
        assert b'"protocolVersion"' in answer and b"42" in called


@pytest.mark.parametrize("accept", ["*/*", None, "application/*, text/*;q=0.5"])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
async def test_a_client_can_accept_anything_and_write_a_slash(tmp_path, accept, path):
    async with serving(tmp_path) as (url, _), connected(url) as connection:
        await connection.call("print(6 * 7)", accept=accept, path=path, version="1.0")
        assert b" 200 OK" in (answer := await connection.rest()) and b"42" in answer


async def test_an_unknown_path_is_answered_with_the_known_ones(tmp_path):
    async with serving(tmp_path) as (url, _):
        for method, path in [("POST", "/"), ("GET", "/sse"), ("POST", "/mcp/x")]:
            async with connected(url) as connection:
                await connection.send(method, path, body={} if method == "POST" else None, version="1.0")
                answer = await connection.rest()
                assert b" 404 " in answer and b"MCP clients use /mcp" in answer, answer


async def test_checks_of_health_ask_in_three_ways(tmp_path):
    async with serving(tmp_path) as (url, _):
        for path in ("/healthz", "/readyz"):
            for method in ("GET", "HEAD", "OPTIONS"):
                # HAProxy sends no host.
                host, port = place(url)
                async with await anyio.connect_tcp(host, port) as stream:
                    await stream.send(f"{method} {path} HTTP/1.0\r\n\r\n".encode())
                    answer = await Connection(stream, host).rest()
                head, _, body = answer.partition(b"\r\n\r\n")
                assert b" 200 OK" in head, answer
                assert (body != b"") == (method == "GET"), answer


async def test_a_client_that_closes_its_sending_side_is_answered(tmp_path):
    async with serving(tmp_path) as (url, _):

        async def answer(version, code, **names):
            async with connected(url) as connection:
                if names:
                    await connection.send("POST", body=python(1, code), version=version, **names)
                else:
                    await connection.call(code, version)
                await connection.stream.send_eof()
                began = time.monotonic()
                answer = await connection.rest()
                return answer, time.monotonic() - began

        session, _ = await opened(url, "2025-11-25")
        slow = "import time; time.sleep(1); print(6 * 7)"
        for version in ("1.0", "1.1"):
            for names in ({}, {"mcp_session_id": session, "mcp_protocol_version": "2025-11-25"}):
                text, took = await answer(version, slow, **names)
                assert b" 200 OK" in text and b"42" in text, text
                assert b"text/event-stream" in text and b":\n\n" in text, text
                # The connection ends when it is answered.
                assert took < 10, took
        async with connected(url) as connection:
            await connection.send("GET", "/healthz")
            await connection.stream.send_eof()
            assert b"ok\n" in await connection.rest(5)
        # Half of a message is not waited for.
        async with connected(url) as connection:
            await connection.stream.send(f"POST /mcp HTTP/1.1\r\nhost: {connection.host}\r\ncontent-length: 9\r\n\r\n{{".encode())
            await connection.stream.send_eof()
            assert b" 400 " in await connection.rest(5)


async def test_a_client_that_leaves_is_distinguished_from_one_that_closes_its_sending_side(tmp_path):
    async with serving(tmp_path) as (url, _):
        (instance,) = instances(tmp_path)
        running = lambda: bool(engine.sandboxes(instance))  # noqa: E731
        async with connected(url) as connection:
            await connection.call("import time; time.sleep(100)", timeout="2m")
            await until(running, 10, "the program runs")
        await until(lambda: not running(), 5, "the program is ended")
        await until(lambda: not open_connections(url), 5, "the connection is closed")


async def test_a_slow_answer_sends_signs_of_life(tmp_path):
    async with serving(tmp_path, http={"keepAlive": "200ms"}) as (url, _):
        async with connected(url) as connection:
            await connection.call("import time; time.sleep(1); print(6 * 7)")
            await connection.until(rb"text/event-stream.*:\n\n.*:\n\n.*:\n\n")
            assert b"data:" not in connection.read
            message = await connection.until(rb"data: .*?(\{.*\}).*?\n\n")
            assert json.loads(message[1])["result"]["structuredContent"]["stdout"] == "42\n"
        async with connected(url) as connection:
            await connection.send("POST", body=hello("2025-11-25"))
            head = await connection.until(rb"mcp-session-id: (\S+)")
        async with connected(url) as connection:
            await connection.send("GET", accept="text/event-stream", mcp_session_id=head[1].decode())
            await connection.until(rb":\n\n.*:\n\n")
        # What is answered at once is answered in JSON, with its status.
        async with connected(url) as connection:
            await connection.call("pass", accept="application/json", version="1.0")
            assert b" 406 " in await connection.rest()
    async with serving(tmp_path) as (url, _), connected(url) as connection:
        await connection.call("print(6 * 7)", version="1.0")
        assert b"content-type: application/json" in await connection.rest()


async def test_a_connection_stays_open_between_requests_as_long_as_configured(tmp_path):
    async with serving(tmp_path, http={"idleTimeout": "1s"}) as (url, _), connected(url) as connection:
        await connection.send("GET", "/healthz")
        await connection.until(rb"ok\n")
        began = time.monotonic()
        await connection.rest()
        assert time.monotonic() - began > 0.9


async def test_a_removed_token_is_refused_whatever_the_file_looks_like(tmp_path):
    lines, secrets = tokens("one", "two")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    then = time.time() - 3600
    for folder, line in zip("ab", lines, strict=True):
        file = tmp_path / folder / "tokens"
        file.write_text(line)
        os.utime(file, (then, then))
    (tmp_path / "now").symlink_to("a")
    http = {"tokens": str(tmp_path / "now/tokens")}
    async with serving(tmp_path, http=http) as (url, log):

        async def statuses():
            found = []
            for secret in secrets:
                async with connected(url) as connection:
                    await connection.send("POST", body={}, version="1.0", authorization=f"Bearer {secret}")
                    found.append(int((await connection.rest()).split()[1]))
            return found

        assert await statuses() == [400, 401]
        # A link leads to another folder, as Kubernetes and Nix do it.
        (tmp_path / "next").symlink_to("b")
        (tmp_path / "next").rename(tmp_path / "now")
        assert await statuses() == [401, 400]
        # The file is written in place, and keeps its size and time.
        for line, expected in [(lines[0], [400, 401]), (lines[1], [401, 400])]:
            (tmp_path / "b/tokens").write_text(line)
            os.utime(tmp_path / "b/tokens", (then, then))
            assert await statuses() == expected
        await until(lambda: log().count("the token file has changed") == 3, 5, "the log says so")


async def test_a_renewed_certificate_is_served_and_a_broken_one_is_not(tmp_path):
    def shown(url):
        return x509.load_pem_x509_certificate(ssl.get_server_certificate(place(url), timeout=10).encode())

    first = certificate(tmp_path, "first")
    names = {"certificate": str(tmp_path / "certificate.pem"), "key": str(tmp_path / "key.pem")}
    async with serving(tmp_path, http={"tls": names}) as (url, log):
        look = anyio.to_thread.run_sync
        assert await look(shown, url) == first
        second = certificate(tmp_path, "second")
        assert await look(shown, url) == second
        (tmp_path / "key.pem").write_text("nonsense")
        for _ in range(3):
            assert await look(shown, url) == second
        third = certificate(tmp_path, "third")
        assert await look(shown, url) == third
        await until(lambda: log().count("the TLS certificate has changed") == 2, 5, "the log says so")
        assert log().count("is not a private key in PEM") == 1 and "files of http.tls" in log(), log()


async def test_a_port_in_use_is_reported_before_anything_is_created(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as used:
        config = configuration(tmp_path)
        address = f"127.0.0.1:{used.getsockname()[1]}"
        started = [*command(config), "--http", address]
        ended = subprocess.run(started, env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 125 and address in ended.stderr, ended
        assert instances(tmp_path) == set()


async def test_idle_connections_leave_descriptors_for_sandboxes(tmp_path):
    # Without the right to raise it.
    limited = ["setpriv", "--bounding-set=-sys_resource", "prlimit", "--nofile=256:256"]
    files = {"openFiles": 64}
    config = configuration(tmp_path, pool=NO_POOL, limits=files)
    checked = subprocess.run(
        [*limited, *command(config)[:-1], "doctor"], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert re.search(r"warning  256 file descriptors: .* can have \d+ of 1024", checked.stdout), checked
    async with serving(tmp_path, limited, limits=files) as (url, log):
        idle = [socket.create_connection(place(url)) for _ in range(300)]
        try:
            # Those that were there first are served.
            code = "import os; print(len(os.listdir('/')) > 0)"
            message = python(1, code)
            message["params"]["_meta"] = CLIENT
            body = json.dumps(message).encode()
            names = f"accept: */*\r\nmcp-protocol-version: {MODERN}\r\nmcp-method: tools/call\r\nmcp-name: execute_code"
            head = f"POST /mcp HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\n{names}\r\n"
            idle[0].sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            idle[0].settimeout(30)
            answer = await anyio.to_thread.run_sync(lambda: b"".join(iter(lambda: idle[0].recv(4096), b"")))
            assert b"True" in answer, answer[-2000:]
            # The others get an answer at once.
            last = idle[-1].recv(4096)
            assert b" 503 " in last and b"too many open connections" in last, last
            for said in ("too few file descriptors for http.maxConnections", "see http.maxConnectionsPerAddress"):
                await until(lambda said=said: said in log(), 30, f"the log says {said!r}")
            assert "Too many open files" not in log() and len(log().splitlines()) < 10, log()
        finally:
            for connection in idle:
                connection.close()
        with anyio.fail_after(60):
            while (await run(url, 1, "print(6 * 7)"))[0] != 200:
                await anyio.sleep(0.1)


async def test_the_soft_limit_of_descriptors_is_no_limit_for_connections(tmp_path):
    # The server may use 4096, whatever its programs may.
    async with serving(tmp_path, ["prlimit", "--nofile=128:4096"]) as (url, _):
        idle = [socket.create_connection(place(url)) for _ in range(300)]
        try:
            code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
            with anyio.fail_after(60):
                status, answer = await run(url, 1, code)
            assert status == 200 and b"(1024, 1024)" in answer, answer
        finally:
            for connection in idle:
                connection.close()


async def test_abandoned_sessions_lock_no_client_out(tmp_path):
    async with serving(tmp_path) as (url, _):
        first, _ = await opened(url, "2025-11-25")
        second, _ = await opened(url, "2025-11-25")
        names = {"mcp_session_id": first, "mcp_protocol_version": "2025-11-25"}
        async with connected(url) as stream:
            await stream.send("GET", accept="text/event-stream", **names)
            await stream.until(rb"text/event-stream")
            for _ in range(256):
                await opened(url, "2025-11-25")
            assert (await run(url, 1, "print(6 * 7)"))[0] == 200

            async def status(session):
                async with connected(url) as connection:
                    await connection.send("POST", body=request(1, "ping"), version="1.0", mcp_session_id=session)
                    return int((await connection.rest()).split()[1])

            # The one with an open stream is in use; the other was idle longest.
            assert (await status(first), await status(second)) == (200, 404)
