"""Sessions, for the programs that measure them, compare them, and run them for long.

Only this file knows what the tools are called and what their answers look like.
"""

import base64
import json
import re
import subprocess
import time
import uuid
from collections import defaultdict
from contextlib import asynccontextmanager, suppress

import anyio
import engine
import processes
from faults import collect
from mcp import Client
from server import WAITS, command, configuration, environment, instances, isolator

# The longest wait for an answer, beyond what a cell itself may take.
ANSWERED_WITHIN_S = 120
LISTENS_WITHIN_S = 60
ENDED_WITHIN_S = 60

# A cell with this code keeps a file open by which the session's processes can be found from outside.
_MARK = 'import builtins as _b; _b._isolator_mark = open("/tmp/{mark}", "w"); del _b'
_MARKED = re.compile(r"/tmp/(session-mark-[0-9a-f]{32})")

# What an error begins with at the end of a traceback of Python.
_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*)(?:: .*)?$", re.MULTILINE)


class Answer:
    """The answer of a tool."""

    def __init__(self, result):
        self.data = result.structured_content or {}
        self.is_error = bool(result.is_error)
        self.text = "".join(block.text for block in result.content if block.type == "text")
        self.status = self.data.get("status")
        self.stdout = self.data.get("stdout") or ""
        self.stderr = self.data.get("stderr") or ""
        self.undone = bool(self.data.get("undone"))
        self.ran = self.status is not None and self.status not in ("invalid_arguments", "refused", "session_gone")
        self._pictures = [block for block in result.content if block.type == "image"]

    def __str__(self):
        return self.text[:2000]

    @property
    def shown(self):
        """The values that the cell has shown, in order: the text, the HTML if there is some, and the media types."""
        return self.data.get("shown") or []

    @property
    def pictures(self):
        """The pictures that came with the answer, as bytes."""
        return [base64.b64decode(block.data) for block in self._pictures]

    @property
    def error(self):
        """The name of the exception that ended the cell, such as "ValueError"."""
        names = _ERROR.findall(self.stderr)
        return names[-1] if self.status == "error" and names else None


class Session:
    """An open session of a client."""

    def __init__(self, client, answer):
        self.client = client
        self.opened = answer
        self.id = answer.data["session"]
        self.mark = f"session-mark-{uuid.uuid4().hex}"

    @classmethod
    async def open(cls, client, language="python", **arguments):
        answer = await call(client, "open_session", language=language, **arguments)
        assert "session" in answer.data, f"no session was opened: {answer}"
        return cls(client, answer)

    async def cell(self, code, within=ANSWERED_WITHIN_S, **arguments):
        """Runs a cell."""
        return await call(self.client, "execute_code", within, session=self.id, entrypoint_code=code, **arguments)

    async def rewind(self, cells):
        return await call(self.client, "rewind_session", session=self.id, cells=cells)

    async def interrupt(self):
        return await call(self.client, "interrupt_session", session=self.id)

    async def close(self):
        return await call(self.client, "close_session", session=self.id)

    async def put_mark(self):
        """Makes its processes known to `sandboxes`."""
        answer = await self.cell(_MARK.format(mark=self.mark))
        assert answer.status == "success", answer


async def call(client, tool, within=ANSWERED_WITHIN_S, **arguments):
    """Calls a tool, and waits for its end."""
    with anyio.fail_after(within):
        return Answer(await client.call_tool(tool, arguments, read_timeout_seconds=within, meta=WAITS))


async def has_sessions(client):
    """Whether a server has sessions at all."""
    return "open_session" in {tool.name for tool in (await client.list_tools()).tools}


def sandboxes():
    """The processes of the sandbox of each session with a mark, by its mark."""
    members = defaultdict(list)
    marks = {}
    for pid in processes.all_pids():
        namespace = processes.namespace(pid, "pid")
        members[namespace].append(pid)
        marks |= {match[1]: namespace for path in processes.open_paths(pid) if (match := _MARKED.fullmatch(path))}
    return {mark: members[namespace] for mark, namespace in marks.items()}


def memory(pids):
    """The memory of these processes in KiB: PSS, so that what they share counts once."""
    total = 0
    for pid in pids:
        # It may have ended meanwhile.
        with suppress(OSError, TypeError):
            total += processes.pss(pid)
    return total


class Server:
    """A server that listens over HTTP, has many clients, and may be killed and started again with the same state."""

    def __init__(self, state, config, log):
        self.state, self.config = state, config
        self._log = log
        self._process = None
        self.url = None
        self.is_killed = False
        self.instances = set()

    @property
    def pid(self):
        return self._process.pid

    async def start(self):
        before = instances(self.state)
        with self._log.open("ab") as log:
            listening = [*command(self.config), "--http", "127.0.0.1:0"]
            begin = log.tell()
            self._process = subprocess.Popen(
                listening, env=environment(self.state), stdin=subprocess.DEVNULL, stderr=log, cwd=self.state
            )
        until = time.monotonic() + LISTENS_WITHIN_S
        while not (url := re.search(rb'url="([^"]+)"', self._log.read_bytes()[begin:])):
            assert self._process.poll() is None, f"the server has ended; its log is {self._log}"
            assert time.monotonic() < until, f"the server does not listen; its log is {self._log}"
            await anyio.sleep(0.05)
        self.url = url[1].decode()
        self.is_killed = False
        self.instances |= instances(self.state) - before

    async def kill(self):
        self.is_killed = True
        self._process.kill()
        await anyio.to_thread.run_sync(self._process.wait, ENDED_WITHIN_S)

    async def stop(self):
        """Ends it as an operator would."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        code = await anyio.to_thread.run_sync(self._process.wait, ENDED_WITHIN_S)
        assert code == 0, f"the server ended with {code}; its log is {self._log}"

    async def left(self):
        """Everything that is left of it on the machine."""
        await anyio.to_thread.run_sync(collect, self.state)
        return [thing for instance in sorted(self.instances) for thing in engine.left(instance, self.state)]


@asynccontextmanager
async def clients(folder, transport, count, **settings):
    """A server with this number of clients. Over standard input and output it has one, which all of them share."""
    config = configuration(folder, **settings)
    if transport == "stdio":
        with (folder / "log").open("a") as log:
            async with isolator(folder, "stdio-auto", config, log=log) as server:
                yield server, [server.client] * count
        return
    server = Server(folder, config, folder / "log")
    await server.start()
    try:
        async with connected(server, count) as connections:
            yield server, connections
    finally:
        with anyio.CancelScope(shield=True):
            await server.stop()
    assert await server.left() == []


@asynccontextmanager
async def connected(server, count):
    """This number of clients of a listening server."""

    async def connect(*, task_status):
        try:
            async with Client(server.url, mode="auto", read_timeout_seconds=ANSWERED_WITHIN_S) as client:
                task_status.started(client)
                await anyio.sleep_forever()
        except (Exception, BaseExceptionGroup):
            # Its connection broke, and the call that was under way says so.
            if not server.is_killed:
                raise

    async with anyio.create_task_group() as tasks:
        yield [await tasks.start(connect) for _ in range(count)]
        tasks.cancel_scope.cancel()


def cpu_us(pids):
    """The CPU time in microseconds that the control groups of these processes have counted."""
    groups = set().union(*map(processes.cpu_groups, pids))
    return sum(processes.group_cpu_us(group) or 0 for group in groups)


def save(path, value):
    """Writes a value to a file for later."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")
