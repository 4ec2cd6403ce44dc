"""Many sessions, of which a few work at a time, for long.

Each session has a number, which its cells add to; each answer must have the sum. Sessions at rest must use no CPU time, also
those with a thread that spins, and all of them together no more memory than they may. In the middle something may be killed.
In the end sessions take more memory than there is for them. Each session then goes on, or its answer says what became of
it, with the cells that it had run. When the server has ended, nothing is left. All of it follows from a seed.
"""

import argparse
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import anyio
import engine
import processes
import sessions
from dockerd import own_dockerd
from faults import IMAGES
from server import configuration
from sessions import Session
from soak import Log, duration

SESSIONS = {"http": 200, "stdio": 20}
CLIENTS = 8
MEMORY_MB = 256

# Each so-manyth session has a thread that never rests by itself.
SPINS_EVERY = 10
SPIN = """
import threading
def spin():
    while True:
        pass
threading.Thread(target=spin, daemon=True).start()
"""

# What one session takes at most, when none of them takes more on purpose.
EACH_MB = 40
HOARD_MB = 128
# What the sessions may have beyond their bound while one of them is removed.
SLACK_MB = 256

# Time until a session that rests is frozen, and what reading the counters may find by chance.
SETTLE_S = 5
NEGLIGIBLE_US = 1000

ENGINE_WITHIN_S = 120

BREAKS = ["server", "launcher", "dockerd"]

# How the reason begins why a session is gone. To make room it may always have to go, and else only when something was killed.
MADE_ROOM = ("the sessions of this server took more than", "you opened another session and can have", "this server can have")
LOST = ("its sandbox was lost: ",)
# The server can't tell who has killed everything while a cell ran.
KILLED = ("its program has ended it: everything in its sandbox was killed",)
# A server that was started again knows none of them.
RESTARTED = ("there is no session ", "the server was restarted", "open_session")


class Owned:
    """A session, and what must be in it."""

    def __init__(self, session, number):
        self.session = session
        self.number = number
        self.first = f"x = {number} * 1000"
        self.x = number * 1000
        self.spins = number % SPINS_EVERY == 0
        self.lock = anyio.Lock()
        self.is_open = True
        # What was killed since it was used last.
        self.harm = None
        self.ran_meanwhile = False

    def is_explained(self, answer):
        """Whether an answer says that it is gone, for a reason that it can have."""
        if not answer.is_error:
            return False
        if self.harm == "server":
            told = (answer.data.get("status"), answer.data.get("field"))
            message = answer.data.get("message", "")
            return told == ("invalid_arguments", "session") and all(part in message for part in RESTARTED)
        reason = answer.data.get("reason", "")
        known = MADE_ROOM + (LOST if self.harm else ()) + (KILLED if self.ran_meanwhile else ())
        return answer.status == "session_gone" and reason.startswith(known) and reason in answer.text


class Soak:
    def __init__(self, options, log):
        self.options, self.log = options, log
        self.random = random.Random(options.seed)
        self.numbers = itertools.count(1)
        self.owned = []
        self.resting = set()
        self.counts = Counter()
        self.wrong = []
        self.took = []

    def fails(self, what):
        self.wrong.append(what)
        self.log.write("wrong", told=what)

    # One session.

    async def open(self, client):
        session = await Session.open(client, memory_mb=MEMORY_MB)
        it = Owned(session, next(self.numbers))
        await session.put_mark()
        answer = await session.cell(it.first)
        assert answer.status == "success", answer
        if it.spins:
            answer = await session.cell(SPIN)
            assert answer.status == "success", answer
        self.owned.append(it)
        self.log.write("opened", number=it.number)

    async def use(self, it, client, kind="add"):
        """Runs a cell in a session, and looks at the answer."""
        more = self.random.randrange(1000)
        end = {
            "add": "print(x)",
            "memory": "y = bytes(8 << 20); del y; print(x)",
            "exception": "print(x); raise ValueError",
            "undone": "print(x, flush=True); __import__('os')._exit(3)",
        }[kind]
        async with it.lock:
            it.session.client = client
            began = time.monotonic()
            answer = await it.session.cell(f"x += {more}\n{end}")
            self.took.append(time.monotonic() - began)
            if not answer.ran:
                self.ended(it, answer)
                return
            expected = it.x + more
            if answer.stdout != f"{expected}\n":
                self.fails(f"session {it.number}, {kind}: {answer.stdout!r} instead of {expected}: {answer}")
            if answer.undone != (kind == "undone"):
                self.fails(f"session {it.number}, {kind}: undone is {answer.undone}: {answer}")
            if not answer.undone:
                it.x = expected
            self.counts[kind] += 1

    def ended(self, it, answer, has_journal=True):
        """A session is no more. The answer must say why, and what its cells were."""
        it.is_open = False
        told = f"{answer.text}\n{answer.data}"
        if not it.is_explained(answer):
            after = f" after {it.harm} was killed" if it.harm else ""
            self.fails(f"session {it.number} has ended{after}, and the answer does not say why: {answer}")
        elif has_journal and it.first not in told:
            self.fails(f"session {it.number} has ended, and its cells are not told: {answer}")
        first = answer.text.split("\n", 1)[0].replace(it.session.id, "…")
        self.counts[f"ended: {first}"] += 1
        self.log.write("ended", number=it.number, told=answer.text[:2000])

    # Many of them.

    async def open_all(self, clients, count):
        async def some(client, share):
            for _ in range(share):
                await self.open(client)

        async with anyio.create_task_group() as tasks:
            for at, client in enumerate(clients):
                tasks.start_soon(some, client, len(range(at, count, len(clients))))

    async def work(self, clients, seconds):
        """All clients work, and now and then half of the sessions rest."""
        until = time.monotonic() + seconds

        async def one(client):
            while time.monotonic() < until:
                ready = [it for it in self.owned if it.is_open and it not in self.resting and not it.lock.locked()]
                if not ready:
                    await anyio.sleep(0.1)
                    continue
                it = self.random.choice(ready)
                kind = self.random.choices(["add", "memory", "exception", "undone"], weights=[16, 2, 1, 1])[0]
                try:
                    # Where a thread runs there is no checkpoint.
                    await self.use(it, client, "add" if it.spins and kind == "undone" else kind)
                except Exception as error:
                    self.fails(f"session {it.number}, {kind}: {type(error).__name__}: {error}")
                    it.is_open = False

        async with anyio.create_task_group() as background:
            background.start_soon(self.rests)
            async with anyio.create_task_group() as workers:
                for client in clients:
                    workers.start_soon(one, client)
            background.cancel_scope.cancel()
        self.resting = set()

    async def rests(self):
        while True:
            open_ones = [it for it in self.owned if it.is_open]
            self.resting = {it for it in open_ones if it.spins or self.random.random() < 0.5}
            for it in self.resting:
                async with it.lock:
                    pass
            await anyio.sleep(SETTLE_S)
            before = await self.look()
            await anyio.sleep(self.options.breath)
            after = await self.look()
            for it in self.resting:
                used = after[it][0] - before[it][0] if it in after and it in before else None
                if used is None:
                    # Others may have needed its memory.
                    if await self.fate(it):
                        self.fails(f"session {it.number} goes on without processes")
                elif used > NEGLIGIBLE_US:
                    self.fails(f"session {it.number} used {used} µs while it rested{' with a thread that spins' * it.spins}")
            self.counts["rests"] += len(self.resting)
            self.resting = set()

    async def look(self):
        """CPU time in µs and memory in KiB of each open session. All of it must be within the bound."""
        found = await anyio.to_thread.run_sync(sessions.sandboxes)
        there = {it: found[it.session.mark] for it in self.owned if it.is_open and it.session.mark in found}
        seen = {it: (sessions.cpu_us(pids), sessions.memory(pids)) for it, pids in there.items()}
        total = sum(memory for _, memory in seen.values()) >> 10
        server = processes.status(self.server.pid, "VmRSS") >> 10
        self.log.write("memory", sessions=len(seen), MiB=total, server_MiB=server)
        if total > self.options.bound + SLACK_MB:
            self.fails(f"the sessions have {total} MiB, and may have {self.options.bound}")
        return seen

    async def fate(self, it, has_journal=True):
        """Uses a session. Whether it goes on; if not, that must be explained."""
        async with it.lock:
            answer = await it.session.cell("print(x)")
        if not answer.ran:
            self.ended(it, answer, has_journal)
        elif answer.stdout != f"{it.x}\n":
            self.fails(f"session {it.number} has {answer.stdout!r} instead of {it.x}: {answer}")
        elif it.harm == "server":
            self.fails(f"session {it.number} goes on in a server that was started after it")
        if answer.ran:
            it.harm, it.ran_meanwhile = None, False
        return answer.ran

    async def fates(self, clients, has_journal=True):
        """Uses each session once: it goes on, or its end is explained."""

        async def some(client, share):
            for it in share:
                it.session.client = client
                await self.fate(it, has_journal)

        open_ones = [it for it in self.owned if it.is_open]
        async with anyio.create_task_group() as tasks:
            for at, client in enumerate(clients):
                tasks.start_soon(some, client, open_ones[at :: len(clients)])
        ended = sum(not it.is_open for it in open_ones)
        print(f"    {len(open_ones) - ended} sessions go on, {ended} have ended", flush=True)

    async def hoard(self, clients):
        """Sessions take more memory than there is for all of them, so that some have to go."""
        wanted = self.options.bound * 3 // 2
        for it, client in zip([it for it in self.owned if it.is_open], itertools.cycle(clients)):
            if wanted <= 0:
                break
            async with it.lock:
                it.session.client = client
                answer = await it.session.cell(f"hoard = b'x' * ({HOARD_MB} << 20)")
            if not answer.ran:
                self.ended(it, answer)
            elif answer.status != "success":
                self.fails(f"session {it.number} got no memory: {answer}")
            wanted -= HOARD_MB
        await anyio.sleep(SETTLE_S)
        await self.look()

    # Faults.

    async def in_flight(self, client, harm):
        """Something happens while a cell runs, which has to be answered, or lose its connection."""
        it = next(it for it in self.owned if it.is_open and not it.spins)
        it.ran_meanwhile = True

        async def ask():
            try:
                answer = await it.session.cell("__import__('time').sleep(5); print(x)")
            except Exception as error:
                if self.options.harm != "server":
                    self.fails(f"a cell that ran was not answered: {type(error).__name__}: {error}")
                return
            self.log.write("in flight", told=str(answer))
            if answer.ran and answer.stdout not in ("", f"{it.x}\n"):
                self.fails(f"session {it.number} printed {answer.stdout!r} when {self.options.harm} was killed")

        it.session.client = client
        async with anyio.create_task_group() as calls:
            calls.start_soon(ask)
            await anyio.sleep(1)
            await harm()


async def kill_launchers(server):
    for pid in processes.children(server.pid):
        os.kill(pid, 9)


async def recovers(client):
    """Waits until sessions can be opened again."""
    with anyio.fail_after(ENGINE_WITHIN_S):
        while True:
            answer = await sessions.call(client, "open_session", language="python")
            if "session" in answer.data:
                await Session(client, answer).close()
                return
            await anyio.sleep(0.5)


async def halves(soak, server, connect, dockerd):
    """The first half of the time, the fault, and the second half."""
    options = soak.options
    soak.server = server

    async def harm():
        for it in soak.owned:
            it.harm = options.harm
        if options.harm == "server":
            await server.kill()
        elif options.harm == "launcher":
            await kill_launchers(server)
        else:
            await anyio.to_thread.run_sync(dockerd.kill)
            await anyio.to_thread.run_sync(dockerd.start)

    async with connect() as clients:
        assert await sessions.has_sessions(clients[0]), "this server has no sessions"
        await soak.open_all(clients, options.sessions)
        print(f"    {len(soak.owned)} sessions are open", flush=True)
        await soak.work(clients, options.time / 2)
        if options.harm:
            await soak.in_flight(clients[0], harm)
    if options.harm == "server":
        await server.start()
    async with connect() as clients:
        if options.harm:
            print(f"    {options.harm} was killed", flush=True)
            await recovers(clients[0])
        await soak.fates(clients, has_journal=options.harm != "server")
        await soak.open_all(clients, options.sessions - sum(it.is_open for it in soak.owned))
        await soak.work(clients, options.time / 2)
        await soak.hoard(clients)
        await soak.fates(clients)
        for it in soak.owned[::2]:
            if it.is_open:
                await it.session.close()


async def run(options, log, folder):
    soak = Soak(options, log)
    bounds = {"max": options.sessions, "maxPerClient": options.sessions, "memoryMB": options.bound, "idleTimeout": "8h"}
    with ExitStack() as stack:
        dockerd = None
        if options.harm == "dockerd":
            (folder / "dockerd").mkdir()
            dockerd = stack.enter_context(own_dockerd(folder / "dockerd", IMAGES))
            os.environ["DOCKER_HOST"] = dockerd.host
        state = folder / "state"
        state.mkdir()
        if options.transport == "stdio":
            async with sessions.clients(state, "stdio", CLIENTS, sessions=bounds) as (server, clients):

                @asynccontextmanager
                async def connect():
                    yield clients

                await halves(soak, server, connect, dockerd)
        else:
            server = sessions.Server(state, configuration(state, sessions=bounds), state / "log")
            await server.start()
            try:
                await halves(soak, server, lambda: sessions.connected(server, CLIENTS), dockerd)
            finally:
                with anyio.CancelScope(shield=True):
                    await server.stop()
            if left := await server.left():
                soak.fails(f"left on the machine: {left}")
    took = sorted(soak.took)
    print(f"{len(took)} cells, median {took[len(took) // 2] * 1000:.1f} ms, p99 {took[len(took) * 99 // 100] * 1000:.1f} ms")
    for what, count in soak.counts.most_common():
        print(f"    {count} {what}")
    return soak.wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time", type=duration, default="10m", help="such as 90s, 10m or 8h")
    parser.add_argument("--sessions", type=int, help="how many are open; 200 over HTTP, 20 over standard input and output")
    parser.add_argument("--bound", type=int, help="MiB for all sessions together")
    parser.add_argument("--breath", type=duration, default="20s", help="how long sessions rest")
    parser.add_argument("--kill", choices=BREAKS, dest="harm", help="what is killed in the middle")
    parser.add_argument("--transport", choices=["stdio", "http"], default="http")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--log", type=Path, default=Path("soak.jsonl"))
    options = parser.parse_args()
    options.sessions = options.sessions or SESSIONS[options.transport]
    options.bound = options.bound or options.sessions * EACH_MB
    if options.harm == "server" and options.transport == "stdio":
        parser.error("a server on standard input and output ends with its client")
    if (options.harm, engine.KIND) in (("launcher", "docker"), ("dockerd", "embedded")):
        parser.error(f"the engine {engine.KIND} has no {options.harm}")
    print(f"{engine.KIND} over {options.transport}, {options.sessions} sessions for {options.time:.0f} s, seed {options.seed}")
    with tempfile.TemporaryDirectory() as folder:
        wrong = anyio.run(run, options, Log(options.log), Path(folder))
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
