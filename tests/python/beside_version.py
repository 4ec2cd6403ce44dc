"""Opening a session, cells and memory, in this version and in another one, in one run.

Both servers run at the same time, and their samples are taken in turn, so that both find the same machine. The other version comes as
a binary with its own folder of data, in which its images are: a new image would not be the one that it was built for. The exit status says
whether everything takes at most a tenth more than there. Nothing else should run on the machine.
"""

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path

import anyio
import engine
import processes
import server
import sessions
from sessions import Session

WAITING = 10
# As shipped.
AHEAD = ["numpy", "pandas"]
LIMITS = {"defaultMemoryMB": 512, "defaultCpus": 2}
# Time in which a pool makes its next sandbox, and a checkpoint is made.
PACE_S, CELL_PACE_S = 0.8, 0.05
# Sandboxes that wait import modules when nothing has come for a while.
CALM_S = 6

FIRST, NEXT = "x = 0", "x += 1"
# A cell that has to be undone: its process is gone.
UNDONE = "import os; os._exit(1)"
MOST = 1.1


class Version:
    """A server of one version."""

    def __init__(self, name, binary, data):
        self.name, self.binary, self.data = name, binary, data
        self.times, self.memory, self.client, self.pid = {}, {}, None, None

    @contextlib.asynccontextmanager
    async def running(self, folder, **settings):
        """Starts it."""
        folder.mkdir()
        before = server.BINARY, os.environ.get("XDG_DATA_HOME")
        server.BINARY = str(self.binary)
        if self.data:
            os.environ["XDG_DATA_HOME"] = str(self.data)
        stack = contextlib.AsyncExitStack()
        try:
            running, [self.client] = await stack.enter_async_context(sessions.clients(folder, "stdio", 1, **settings))
            self.pid = running.pid
        finally:
            server.BINARY = before[0]
            if before[1] is not None:
                os.environ["XDG_DATA_HOME"] = before[1]
            elif self.data:
                del os.environ["XDG_DATA_HOME"]
        async with stack:
            yield

    def note(self, name, began):
        self.times.setdefault(name, []).append((time.perf_counter() - began) * 1000)

    async def session(self, first_at_once):
        """Opens a session, and runs cells in it."""
        began = time.perf_counter()
        session = await Session.open(self.client)
        self.note("open", began)
        if not first_at_once:
            await anyio.sleep(PACE_S)
        first = time.perf_counter()
        await self.cell(session, FIRST)
        self.note("first cell at once" if first_at_once else "first cell, later", first)
        if first_at_once:
            self.note("open and first cell", began)
        for _ in range(5):
            await anyio.sleep(CELL_PACE_S)
            began = time.perf_counter()
            await self.cell(session, NEXT)
            self.note("cell", began)
        for _ in range(5):
            began = time.perf_counter()
            await self.cell(session, NEXT)
            self.note("cell without a pause", began)
        await anyio.sleep(CELL_PACE_S)
        began = time.perf_counter()
        undone = await session.cell(UNDONE)
        assert undone.undone, undone
        self.note("cell that is undone", began)
        began = time.perf_counter()
        await self.cell(session, NEXT)
        self.note("cell at once after an undo", began)
        await session.put_mark()
        await anyio.sleep(CELL_PACE_S)
        self.memory.setdefault("a session", []).append(sessions.memory(sessions.sandboxes()[session.mark]) / 1024)
        await session.close()

    async def cell(self, session, code):
        answer = await session.cell(code)
        assert answer.status == "success", answer

    def note_waiting(self, name):
        """Notes the memory of everything that the server has started, in MiB. Docker's sandboxes are not among that."""
        if engine.KIND == "embedded":
            self.memory[name] = [self._waiting()]

    def _waiting(self):
        found, todo = [], [self.pid]
        while todo:
            children = processes.children(todo.pop())
            found += children
            todo += children
        return sessions.memory(found) / 1024


async def measure(versions, folder, options):
    settings = {
        "languageSettings": {"python": {"preload": {"modules": AHEAD}}, "javascript": {"enabled": False}, "go": {"enabled": False}},
        "pool": {"size": WAITING, "hot": 2},
    } | LIMITS
    async with contextlib.AsyncExitStack() as stack:
        for version in versions:
            await stack.enter_async_context(version.running(folder / version.name, **settings))
        await anyio.sleep(CALM_S * 2)
        for version in versions:
            version.note_waiting("ten waiting sandboxes")
        for turn in range(options.sessions):
            for version in versions[:: 1 if turn % 2 else -1]:
                await anyio.sleep(PACE_S)
                await version.session(turn % 2)
        await anyio.sleep(CALM_S)
        for version in versions:
            version.note_waiting("ten waiting sandboxes, after sessions")


def table(old, new):
    """Prints the medians. Returns the names of those that are too high."""
    print("| median | old | new | new / old |\n|---|---|---|---|")
    worse = []
    for unit, before, after in [("ms", old.times, new.times), ("MiB", old.memory, new.memory)]:
        for name in before:
            first, then = statistics.median(before[name]), statistics.median(after[name])
            worse += [name] if then > first * MOST else []
            print(f"| {name} | {first:.2f} {unit} | {then:.2f} {unit} | {then / first:.2f} |")
    return worse


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=Path, help="the binary of the other version")
    parser.add_argument("--data", type=Path, help="its XDG_DATA_HOME, if it has its own images")
    parser.add_argument("--sessions", type=int, default=20, help="sessions of each version")
    options = parser.parse_args()
    versions = [Version("old", options.binary, options.data), Version("new", Path(server.BINARY), None)]
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(measure, versions, Path(folder), options)
    worse = table(*versions)
    if worse:
        raise SystemExit(f"more than {MOST} of the other version: {', '.join(worse)}")


if __name__ == "__main__":
    main()
