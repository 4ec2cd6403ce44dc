"""A server among several behind a load balancer: it stops without losing a call, says which calls did not run, refuses sessions when it is
full, and says how much of it is free."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest
from by_hand import CLIENT, MODERN
from faults import NO_POOL
from operators import asked, free_port, get, operated, values
from server import BINARY, process_with, until

pytestmark = pytest.mark.any_engine

LEGACY = "2025-06-18"
ASKS = {"isolator-not-run": "status"}
POOL = {"size": 2, "hot": 1}


class Caller:
    """A connection that stays, of a client that speaks one of two revisions."""

    def __init__(self, url, version=MODERN, **headers):
        self.place = url.split("/")[2]
        self.connection = http.client.HTTPConnection(self.place, timeout=30)
        self.headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": version,
        } | headers
        self.version = version
        if version == LEGACY:
            about = {"protocolVersion": LEGACY, "clientInfo": {"name": "old", "version": "1"}, "capabilities": {}}
            answer, _ = self.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about})
            self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
            answer, _ = self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            assert answer.status == 202

    def send(self, message):
        """Sends a message. Returns the head and the body of the answer."""
        headers = dict(self.headers)
        if self.version == MODERN:
            params = message["params"]
            headers |= {"mcp-method": message["method"], "mcp-name": params["name"]}
            headers |= {"mcp-param-session": handle} if (handle := params["arguments"].get("session")) else {}
        self.connection.request("POST", "/mcp", json.dumps(message), headers)
        answer = self.connection.getresponse()
        return answer, answer.read()

    def call(self, name, **arguments):
        """Calls a tool. Returns the head of the answer, and the result in its body."""
        params = {"name": name, "arguments": arguments}
        if self.version == MODERN:
            params["_meta"] = CLIENT
        answer, body = self.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        if answer.headers["content-type"] == "text/event-stream":
            (body,) = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
        message = json.loads(body)
        return answer, message["result"] if "result" in message else {"isError": True} | message["error"]

    def run(self, code, **arguments):
        return self.call("execute_code", language="python", entrypoint_code=code, **arguments)


def outcome(answer):
    return answer.status, answer.headers["isolator-outcome"]


async def in_thread(function, *arguments):
    return await anyio.to_thread.run_sync(function, *arguments)


class Sleeping:
    """A program that sleeps under a name of its own, by which it is seen that it has begun."""

    def __init__(self, seconds):
        self.name = f"sleeping-{uuid.uuid4().hex}"
        self.code = f"import os; os.execv('/bin/sleep', ['{self.name}', '{seconds}'])"

    def count(self):
        """How many of it run."""
        found = 0
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            # It may have ended.
            with suppress(OSError):
                found += path.read_bytes().startswith(self.name.encode())
        return found


@contextmanager
def busy(url, number, seconds):
    """Calls that take this long, after they have begun."""
    program = Sleeping(seconds)
    callers = [Caller(url) for _ in range(number)]
    threads = [threading.Thread(target=caller.run, args=[program.code]) for caller in callers]
    for thread in threads:
        thread.start()
    until_s = time.monotonic() + 30
    while program.count() < number:
        assert time.monotonic() < until_s, "the calls do not begin"
        time.sleep(0.02)
    yield
    for thread in threads:
        thread.join()


class Load(threading.Thread):
    """Programs one after the other over one connection, until the server is gone, as a balancer sends them."""

    def __init__(self, url):
        super().__init__()
        self.url, self.served, self.refused, self.wrong = url, 0, 0, []
        self.start()

    def run(self):
        caller = Caller(self.url, **ASKS)
        for number in range(100_000):
            try:
                answer, result = caller.run(f"print({number})")
            except ConnectionRefusedError:
                # Nothing was sent: a balancer takes another server.
                return
            except Exception as error:
                self.wrong.append(repr(error))
                return
            match outcome(answer):
                case 200, "ran" if result["structuredContent"]["stdout"] == f"{number}\n":
                    self.served += 1
                case 503, "not-run" if answer.headers["retry-after"] and result["isError"]:
                    self.refused += 1
                case _:
                    self.wrong.append((dict(answer.headers), result))


@pytest.mark.parametrize("notice", ["0s", "1s"])
async def test_a_stop_under_load_loses_no_call_that_a_balancer_repeats(tmp_path, notice):
    settings = {"http": {"drainNotice": notice}, "node": {"name": "n1"}, "pool": POOL}
    async with operated(tmp_path, **settings) as (url, _, _):
        pid = process_with(f"XDG_STATE_HOME={tmp_path}")
        loads = [Load(url) for _ in range(4)]
        await until(lambda: all(load.served > 3 for load in loads), 30, "calls that are served")
        os.kill(pid, signal.SIGTERM)
        for load in loads:
            await in_thread(load.join)
        wrong = [wrong for load in loads for wrong in load.wrong]
        assert not wrong, wrong
        assert any(load.refused for load in loads)


async def test_calls_are_served_after_the_notice_and_sessions_are_told(tmp_path):
    settings = {"http": {"drainNotice": "3s", "drain": "5s"}, "pool": POOL}
    async with operated(tmp_path, **settings) as (url, admin, _):
        pid = process_with(f"XDG_STATE_HOME={tmp_path}")
        caller = Caller(url)
        session = (await in_thread(lambda: caller.call("open_session", language="python")))[1]["structuredContent"]["session"]
        answer, result = await in_thread(lambda: caller.call("execute_code", session=session, entrypoint_code="1"))
        assert "about to stop" not in str(result) and answer.headers["connection"] != "close"

        os.kill(pid, signal.SIGTERM)
        await until(lambda: get(f"{admin}/readyz")[0] == 503, 2, "a server that is not ready")
        answer, result = await in_thread(lambda: caller.call("execute_code", session=session, entrypoint_code="2"))
        assert outcome(answer) == (200, "ran") and answer.headers["connection"] == "close"
        assert "this server is about to stop, and the session ends with it" in str(result["structuredContent"])

        with_long = Caller(url)
        long = threading.Thread(target=lambda: kept.append(with_long.run("import time; time.sleep(4); print('end')")))
        kept = []
        long.start()

        def is_refused():
            return outcome(caller.run("print(1)")[0]) == (200, "not-run")

        await until(is_refused, 5, "refused calls")
        answer, result = await in_thread(lambda: caller.call("execute_code", session=session, entrypoint_code="3"))
        assert result["structuredContent"]["status"] == "session_gone", result
        assert "the server was stopped" in str(result), result
        await in_thread(long.join)
        assert kept[0][1]["structuredContent"]["stdout"] == "end\n"


async def test_another_signal_ends_the_notice_and_what_runs(tmp_path):
    async with operated(tmp_path, http={"drainNotice": "60s", "drain": "60s"}, pool=NO_POOL) as (url, admin, _):
        pid = process_with(f"XDG_STATE_HOME={tmp_path}")
        caller, program = Caller(url), Sleeping(50)
        answers = []
        long = threading.Thread(target=lambda: answers.append(caller.run(program.code)))
        long.start()
        # A call has its slot before it has a sandbox, and without a program that has begun it would not have run.
        await until(lambda: program.count() == 1, 30, "a program that runs")
        began = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        await until(lambda: get(f"{admin}/readyz")[0] == 503, 10, "the notice")
        os.kill(pid, signal.SIGTERM)
        await in_thread(long.join)
        assert outcome(answers[0][0]) == (200, "unknown")
        assert time.monotonic() - began < 15


async def test_an_operator_drains_a_server_and_waits_for_its_calls(tmp_path):
    async with operated(tmp_path, pool=POOL) as (url, admin, _):
        command = [BINARY, "drain", admin.removeprefix("http://"), "--wait"]
        with busy(url, 1, 3):
            began = time.monotonic()
            done = await in_thread(lambda: subprocess.run(command, capture_output=True, text=True, timeout=30))
            assert done.returncode == 0, done
            first, last = done.stdout.splitlines()
            assert "not ready anymore" in first and "running: 1" in first
            assert last == "no call runs; running: 0, waiting: 0, open sessions: 0"
            assert time.monotonic() - began > 1
        with busy(url, 1, 3):
            began = time.monotonic()
            done = await in_thread(
                lambda: subprocess.run([*command[:-1], "--wait=500ms"], capture_output=True, text=True, timeout=30)
            )
            assert done.returncode == 0, done
            assert done.stdout.splitlines()[1] == "calls still run; running: 1, waiting: 0, open sessions: 0"
            assert time.monotonic() - began < 2
        assert (await asked(f"{admin}/readyz"))[0] == 503
        # It is still served.
        assert outcome((await in_thread(lambda: Caller(url).run("print(1)")))[0]) == (200, "ran")
        with_origin = await in_thread(post_from_a_page, admin)
        assert with_origin == 403


def post_from_a_page(admin):
    connection = http.client.HTTPConnection(admin.removeprefix("http://"), timeout=10)
    connection.request("POST", "/drain", "", {"origin": "http://evil.example"})
    return connection.getresponse().status


# Only this server has the session of the older client.
@pytest.mark.parametrize(("version", "of_one", "status"), [(MODERN, 1, 429), (MODERN, 2, 503), (LEGACY, 2, 200)])
async def test_a_call_that_did_not_run_has_a_status_if_a_balancer_asks_for_it(tmp_path, version, of_one, status):
    requests = {"maxRunning": 2, "maxRunningPerClient": of_one, "maxQueue": 0}
    async with operated(tmp_path, pool=POOL, requests=requests) as (url, _, _):
        asking, plain = await in_thread(lambda: (Caller(url, version, **ASKS), Caller(url, version)))
        answer, result = await in_thread(lambda: asking.run("print(1)"))
        assert outcome(answer) == (200, "ran") and result["structuredContent"]["stdout"] == "1\n"

        def both():
            with busy(url, of_one, 3):
                return asking.run("print(1)"), plain.run("print(1)")

        (refused, asked_result), (answer, result) = await in_thread(both)
        assert outcome(refused) == (status, "not-run")
        assert int(refused.headers["retry-after"] or 0) >= (status != 200)
        assert answer.status == 200 and answer.headers["isolator-outcome"] in ("not-run", None)
        for one in (asked_result, result):
            assert one["isError"] and "The program did not run." in one["content"][0]["text"], one


async def test_a_call_is_refused_before_its_answer_begins(tmp_path):
    requests = {"maxRunning": 1, "maxQueue": 9, "queueTimeout": "30s"}
    async with operated(tmp_path, pool=POOL, requests=requests, http={"keepAlive": "2s"}) as (url, _, _):

        def one():
            with busy(url, 1, 6):
                return Caller(url, **ASKS).run("print(1)")

        answer, result = await in_thread(one)
        assert outcome(answer) == (503, "not-run") and re.search("waited (1s|9[0-9]+ms)", str(result)), result


async def test_a_full_node_refuses_sessions_and_ends_none(tmp_path):
    sessions = {"max": 2, "maxPerClient": 2}
    async with operated(tmp_path, pool=POOL, sessions=sessions, node={"name": "n1"}) as (url, _, _):
        caller = Caller(url, **ASKS)

        def opened():
            return caller.call("open_session", language="python")

        handles = [(await in_thread(opened))[1]["structuredContent"]["session"] for _ in range(2)]
        answer, result = await in_thread(opened)
        assert answer.status in (429, 503) and answer.headers["isolator-outcome"] == "not-run"
        assert "sessions.whenFull" in result["content"][0]["text"], result
        for handle in handles:
            answer, _ = await in_thread(lambda handle=handle: caller.call("execute_code", session=handle, entrypoint_code="1"))
            assert outcome(answer) == (200, "ran")
        await in_thread(lambda: caller.call("close_session", session=handles[0]))
        assert outcome((await in_thread(opened))[0]) == (200, "ran")


def line_of(port):
    """The line of an agent check, which HAProxy may have sent a text first."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        with suppress(OSError):
            connection.sendall(b"backend/n1\n")
        found = b""
        while piece := connection.recv(100):
            found += piece
    return found.decode()


async def test_the_agent_check_says_how_much_is_free_whoever_holds_connections(tmp_path):
    port = free_port()
    settings = {"node": {"agentCheck": str(port)}, "requests": {"maxRunning": 2, "maxRunningPerClient": 2}, "pool": POOL}
    async with operated(tmp_path, **settings) as (url, admin, _):
        await until(lambda: line_of(port) == "ready up 100%\n", 30, "a node that is free")
        held = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(200)]
        assert await in_thread(line_of, port) == "ready up 100%\n"
        for connection in held:
            # All have their line, and none reads it.
            assert connection.recv(100, socket.MSG_PEEK) == b"ready up 100%\n"

        def while_busy():
            with busy(url, 1, 2):
                return line_of(port), values(get(f"{admin}/metrics")[2])["isolator_load"]

        assert await in_thread(while_busy) == ("ready up 50%\n", 0.5)
        await in_thread(lambda: subprocess.run([BINARY, "drain", admin.removeprefix("http://")], check=True, timeout=30))
        await until(lambda: line_of(port) == "drain\n", 2, "a node that drains")
        for connection in held:
            connection.close()
