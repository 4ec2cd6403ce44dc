"""A long run of everything at once, and what must hold of it.

Four out of five requests are ordinary ones that carry a number which has to come back, one in five is a case of the
hostile suite or is given up half-way; every fiftieth is a canary, whose time counts. Once a minute all of them hold
their breath: when the pools are full again it is seen what the server holds, and something happens to a sandbox that
waits. All of it follows from a seed. What happens is written to a log outside of the server, and soak_laws.py holds
that against the laws. Nothing else should run on the machine: what is left on it is counted.
"""

import argparse
import copy
import itertools
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import anyio
import engine
import processes
import soak_laws
from programs import HELLO
from server import until
from test_hostile import CASES, POOL, PYTHON_POOL, TIMEOUT, serving
from test_hostile import run as run_case

# A sandbox that had served before would have these files, or other processes than the runner, its own, and process 1.
ORDINARY = """\
import os, sys
open("/tmp/served", "x"); open("/dev/shm/served", "x"); open("/workspace/served", "x")
assert sorted(os.listdir("/workspace")) == ["main.py", "served"], os.listdir("/workspace")
print(sys.stdin.read(), end="")
"""
OTHERS = {
    "javascript": "process.stdout.write(require('fs').readFileSync(0))",
    "go": 'package main\nimport ("io"; "os")\nfunc main() { io.Copy(os.Stdout, os.Stdin) }',
}
ENDLESS = "import time\nwhile True: time.sleep(1)"

# Programs that are slow when they are alone get more time among others; hosts, and the tests' client, wait for longer.
PATIENCE = "40s"

# What the allocator keeps for later grows by a step now and then, and can't be told from a leak. So it gives back what
# it can, and has one heap for all threads.
TUNABLES = "glibc.malloc.arena_max=1:glibc.malloc.trim_threshold=65536:glibc.malloc.mmap_threshold=65536"

CLIENTS = 4
CANARY_EVERY = 50
HOSTILE_SHARE = 0.2

# Results are kept for a second; after two nothing of a request is left for a reason.
SETTLE_S = 2
FULL_WITHIN_S = 120
POOLED = PYTHON_POOL["size"] + (len(HELLO) - 1) * POOL["size"]

# Canaries without and with a hostile neighbour, and the time between them, in which a pool fills itself. Docker, which
# makes three or four sandboxes a second on two cores, has to do so beside a neighbour that keeps one of them busy.
CANARIES = 200
PACE_S = 1


class Log:
    """Events, one line each."""

    def __init__(self, path):
        self.file = open(path, "w")
        self.began = time.monotonic()

    def write(self, what, **more):
        print(json.dumps({"at": time.monotonic() - self.began, "what": what} | more), file=self.file, flush=True)


class Soak:
    def __init__(self, server, log, seed):
        self.server, self.log = server, log
        self.random = random.Random(seed)
        self.ids = itertools.count()
        self.until = None
        self.at_work = 0
        self.may_work = anyio.Event()
        self.may_work.set()

    async def ask(self, kind, call):
        """Makes a request, and writes down how it ends: once."""
        number = next(self.ids)
        self.log.write("asked", id=number, kind=kind)
        began = time.monotonic()
        try:
            wrong = await call(number)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        took = time.monotonic() - began
        self.log.write("answered", id=number, kind=kind, took=took, wrong=wrong)

    async def ordinary(self, language="python"):
        async def call(number):
            nonce = f"{number}-{self.random.random()}"
            code = ORDINARY if language == "python" else OTHERS[language]
            arguments = {"language": language, "entrypoint_code": code, "stdin": nonce, "timeout": TIMEOUT}
            result = await self.server.call(**arguments)
            printed = (result.structured_content or {}).get("stdout")
            return None if printed == nonce else f"{nonce!r} was asked: {result.content[0].text[:500]}"

        await self.ask("ordinary", call)

    async def canary(self, kind):
        async def call(number):
            code = f"print({number})"
            result = await self.server.call(language="python", entrypoint_code=code)
            printed = (result.structured_content or {}).get("stdout")
            return None if printed == f"{number}\n" else result.content[0].text[:500]

        await self.ask(kind, call)

    async def hostile(self):
        case = copy.copy(self.random.choice(CASES))
        if case.call["timeout"] == TIMEOUT:
            case.call = case.call | {"timeout": PATIENCE}

        async def call(number):
            await run_case(self.server, case)

        await self.ask(f"hostile {case.name}", call)

    async def given_up(self):
        """A call whose answer no client reads."""
        number = next(self.ids)
        self.log.write("asked", id=number, kind="given up")
        with anyio.move_on_after(self.random.uniform(0.001, 0.5)):
            await self.server.call(language="python", entrypoint_code=ENDLESS, timeout="30s")
        self.log.write("cancelled", id=number)

    async def client(self):
        for count in itertools.count(1):
            await self.may_work.wait()
            if time.monotonic() > self.until:
                return
            self.at_work += 1
            await self.request(count)
            self.at_work -= 1

    async def request(self, count):
        dice = self.random.random()
        if count % CANARY_EVERY == 0:
            await self.canary("canary")
        elif dice < HOSTILE_SHARE / 4:
            await self.given_up()
        elif dice < HOSTILE_SHARE:
            await self.hostile()
        else:
            language = self.random.choices(list(HELLO), weights=[18, 2, 1])[0]
            await self.ordinary(language)

    async def breaths(self, every_s):
        while True:
            await anyio.sleep(every_s)
            self.may_work = anyio.Event()
            await self.breath()
            fault = self.random.choice(engine.FAULTS)
            engine.harm(self.random.choice(engine.sandboxes(self.server.instance)), fault)
            self.log.write("fault", kind=fault)
            self.may_work.set()

    def pooled(self):
        return len(engine.sandboxes(self.server.instance))

    async def breath(self):
        """The state at rest: the waiting sandboxes, and nothing of earlier calls."""
        await until(lambda: self.at_work == 0, FULL_WITHIN_S, "the last requests end")
        await anyio.sleep(SETTLE_S)
        await until(lambda: self.pooled() == POOLED, FULL_WITHIN_S, f"{POOLED} sandboxes, all of them pooled")
        self.log.write("breath", sandboxes=POOLED, **usage(self.server.pid))


def usage(pid):
    """The resources of a server and its launchers; memory in KiB."""
    return {
        "memory": processes.status(pid, "VmRSS"),
        "engine": engine.memory(processes.children(pid)),
        "files": processes.open_files(pid),
        "threads": processes.status(pid, "Threads"),
    }


async def neighbour(server):
    """Wants all of a core and of its memory, again and again."""
    greedy = "import os\nwhile True:\n    os.fork()\n    x = bytearray(1 << 20)"
    while True:
        await server.call(language="python", entrypoint_code=greedy, timeout="1s")


async def canaries(soak, kind):
    for _ in range(CANARIES):
        await soak.canary(kind)
        await anyio.sleep(PACE_S)


async def soak(options, folder, log):
    log.write("machine", **machine())
    async with serving(folder, options.transport) as server:
        work = Soak(server, log, options.seed)
        for language in HELLO:
            await work.ordinary(language)
        await canaries(work, "idle canary")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(neighbour, server)
            await canaries(work, "canary with a neighbour")
            tasks.cancel_scope.cancel()

        await work.breath()
        work.until = time.monotonic() + options.time
        async with anyio.create_task_group() as background:
            background.start_soon(work.breaths, options.breath)
            async with anyio.create_task_group() as clients:
                for _ in range(CLIENTS):
                    clients.start_soon(work.client)
            background.cancel_scope.cancel()
        await work.breath()
    # That nothing of the server is left is asserted at its end.
    log.write("ended")
    await anyio.sleep(2)
    log.write("machine", **machine())


def machine():
    """Possible leftovers of a server on the machine."""
    pids = processes.all_pids()
    return {
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "zombies": [processes.state(pid) for pid in pids].count("Z"),
        # Namespaces without a process are kept by mounts.
        "networks": len({processes.namespace(pid, "net") for pid in pids} - {None}),
        "sandboxes": len(list(engine.all_processes())),
        "groups": sum(len(folders) for _, folders, _ in os.walk("/sys/fs/cgroup")),
    }


def duration(text):
    units = {"s": 1, "m": 60, "h": 3600}
    return float(text[:-1]) * units[text[-1]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time", type=duration, default="20m", help="such as 90s, 20m or 8h")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--transport", choices=["stdio", "http"], default="http")
    parser.add_argument("--breath", type=duration, default="60s", help="time between two, and their faults")
    parser.add_argument("--log", type=Path, default=Path("soak.jsonl"))
    options = parser.parse_args()
    print(f"{engine.KIND} over {options.transport} for {options.time:.0f} s, seed {options.seed}, log {options.log}")
    log = Log(options.log)
    os.environ["GLIBC_TUNABLES"] = TUNABLES
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(soak, options, Path(folder), log)
    broken = soak_laws.check(options.log, engine.KIND)
    sys.exit("\n".join(broken) or None)


if __name__ == "__main__":
    main()
