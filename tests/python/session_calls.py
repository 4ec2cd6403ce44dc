"""Sessions of a server under test. Every answer with data is checked against the schema of its tool."""

import json
import re
import uuid
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import engine
import jsonschema
from server import isolator, until

# A sandbox is frozen a second after the last answer. A busy machine needs longer.
FROZEN_WITHIN_S = 30

# Fewer than a server runs at once.
AT_ONCE = 6

# A little of Python's own time may pass while a thread waits for nothing.
NO_CPU_S = 0.001

HANDLE = re.compile("[0-9a-f]{32}")


class Tools:
    """The tools of a server."""

    def __init__(self, client, schemas):
        self.client = client
        self.schemas = schemas

    @classmethod
    async def of(cls, client):
        tools = (await client.list_tools()).tools
        return cls(client, {tool.name: tool.output_schema for tool in tools})

    async def call(self, tool, arguments, **options):
        """The answer, whose data fit the schema."""
        result = await self.client.call_tool(tool, arguments, **options)
        if result.structured_content is not None:
            jsonschema.validate(result.structured_content, self.schemas[tool])
        else:
            assert result.is_error, result.content
        return result

    async def refuses(self, tool, field, *said, **arguments):
        """A call that is refused because of an argument."""
        result = await self.call(tool, arguments)
        data = result.structured_content
        assert result.is_error and data["status"] == "invalid_arguments", result.content
        assert data["field"] == field and all(part in data["message"] for part in said), data
        return data["message"]

    async def is_gone(self, handle, *said):
        """Every tool reports that a session is gone. Returns the data of the last answer."""
        for tool, arguments in [
            ("run_command", {"command": "true"}),
            ("rewind_session", {"cells": 1}),
            ("interrupt_session", {}),
            ("execute_code", {"entrypoint_code": "1"}),
        ]:
            result = await self.call(tool, {"session": handle} | arguments)
            data = result.structured_content
            assert result.is_error and data["status"] == "session_gone", result.content
            assert data["session"] == handle and all(part in data["reason"] for part in said), data
            text = result.content[0].text
            assert data["reason"] in text and "open_session" in text and "replay" in text, text
        closed = await self.call("close_session", {"session": handle})
        assert closed.structured_content == {"closed": False}
        return data

    async def read(self, uri):
        """The content of a resource."""
        (content,) = (await self.client.read_resource(uri)).contents
        return content

    async def counts(self):
        return json.loads((await self.read("isolator://pool")).text)["sessions"]

    async def listed(self):
        """The caller's sessions by their handles."""
        listed = json.loads((await self.read("isolator://sessions")).text)
        return {session["session"]: session for session in listed}


class Session:
    """An open session."""

    def __init__(self, tools, opened):
        self.tools = tools
        self.opened = opened.structured_content
        self.receipt = opened.meta["isolator/receipt"]
        self.id = self.opened["session"]

    async def call(self, tool, **arguments):
        return await self.tools.call(tool, {"session": self.id} | arguments)

    async def answer(self, code, **arguments):
        """The whole answer to a cell."""
        return await self.call("execute_code", entrypoint_code=code, **arguments)

    async def cell(self, code, status="success", **arguments):
        """The data of the answer to a cell that ends so."""
        result = await self.answer(code, **arguments)
        data = result.structured_content
        assert data is not None and data["status"] == status, result.content
        assert result.is_error == (status not in ("success", "running")), result.content
        return data

    async def value(self, code, **arguments):
        """The value of the last expression of a cell."""
        return (await self.cell(code, **arguments))["result"]

    async def command(self, command, status="success", **arguments):
        """The data of the answer to a command that ends so."""
        result = await self.call("run_command", command=command, **arguments)
        data = result.structured_content
        assert data is not None and data["status"] == status, result.content
        return data

    async def rewind(self, cells):
        result = await self.call("rewind_session", cells=cells)
        assert not result.is_error, result.content
        return result.structured_content

    async def interrupt(self):
        """Whether something ran."""
        return (await self.call("interrupt_session")).structured_content["interrupted"]

    async def close(self):
        return (await self.call("close_session")).structured_content["closed"]

    async def state(self):
        """Its entry in the list of sessions; None if there is none."""
        return (await self.tools.listed()).get(self.id)

    async def files(self):
        """The sizes of all its files."""
        listed = json.loads((await self.tools.read(f"isolator://sessions/{self.id}/files")).text)
        assert not listed["more"]
        return {file["path"]: file["size"] for file in listed["files"]}

    async def file(self, path, query=""):
        return await self.tools.read(f"isolator://sessions/{self.id}/files/{path}{query}")

    async def is_running(self):
        """Waits until something runs."""
        await self._is("running", 60)

    async def is_frozen(self):
        """Waits until nothing in it runs."""
        await self._is("frozen", FROZEN_WITHIN_S)

    async def _is(self, what, within):
        with anyio.fail_after(within):
            while not (await self.state())[what]:
                await anyio.sleep(0.05)

    @asynccontextmanager
    async def running(self, code, **arguments):
        """A cell that runs meanwhile. Gives a list, in which the answer is after the block."""
        answers = []

        async def run():
            answers.append(await self.answer(code, **arguments))

        async with anyio.create_task_group() as calls:
            calls.start_soon(run)
            await self.is_running()
            yield answers


async def open_session(tools, language="python", **arguments):
    result = await tools.call("open_session", {"language": language} | arguments)
    assert not result.is_error, result.content
    return Session(tools, result)


@asynccontextmanager
async def opened(tools, language="python", **arguments):
    """A session, which is closed at the end if it is still there."""
    session = await open_session(tools, language, **arguments)
    try:
        yield session
    finally:
        await session.close()


@asynccontextmanager
async def serving(folder, config, kind="stdio-auto", **options):
    """A new server and its tools."""
    async with isolator(folder, kind, config, **options) as server:
        yield server, await Tools.of(server.client)


async def at_once(check, cases):
    """Checks all cases, some at a time: most of them only wait."""
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def one(case):
        async with limit:
            await check(case)

    async with anyio.create_task_group() as tasks:
        for case in cases:
            tasks.start_soon(one, case)


async def process_of(session):
    """The process that runs the session's cells, as this machine numbers it."""
    name = uuid.uuid4().hex[:15]
    await session.cell(f"open('/proc/self/comm', 'w').write('{name}')")

    def found():
        return [entry.parent.name for entry in Path("/proc").glob("[0-9]*/comm") if _read(entry) == f"{name}\n"]

    await until(found, 30, "the process is seen")
    return int(found()[0])


async def sandbox_of(server, session):
    """The sandbox that is the session's."""
    groups = _read(Path(f"/proc/{await process_of(session)}/cgroup"))
    # One name can begin another, so whole parts of the paths are compared.
    parts = set(groups.replace("\n", "/").split("/"))
    (sandbox,) = [sandbox for sandbox in engine.sandboxes(server.instance) if sandbox.id in parts]
    return sandbox


def cpu_of(sandbox):
    """CPU time in seconds that everything in a sandbox has used, as its control group counts it."""
    for place in Path("/sys/fs/cgroup").rglob(f"*{sandbox.id}*"):
        if usage := _read(place / "cpuacct.usage"):
            return int(usage) / 1e9
        if usage := re.match(r"usage_usec (\d+)", _read(place / "cpu.stat")):
            return int(usage[1]) / 1e6
    raise AssertionError("the group of the sandbox counts no time")


def _read(path):
    try:
        return path.read_text()
    except OSError:
        return ""
