"""Checks of a server with E2B's SDKs for Python, each with the synchronous and with the asynchronous client.

`main` prints one JSON object with the versions and the outcome of each check: "works" or "fails: …". The address and the
key come from the variables that every SDK of E2B reads. A check that has the newest SDKs only, because older ones lack a
method, is in `with_e2b.py`.
"""

import asyncio
import inspect
import json
import os
import sys
import traceback
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

# No check takes longer, unless an answer does not come.
WITHIN_S = 90
# The end of every sandbox of these checks, should one not be killed.
TIMEOUT_S = 300


@dataclass
class World:
    """One of the two clients, and a sandbox that its checks share."""

    Sandbox: Any
    sandbox: Any = None

    async def new(self, *arguments, **settings):
        return await done(self.Sandbox.create(*arguments, **{"timeout": TIMEOUT_S} | settings))


async def done(value):
    """The value of a call, which the asynchronous client has to wait for."""
    return await value if inspect.isawaitable(value) else value


async def raised(kind, call):
    """The exception that a call ends with, which must be of this kind."""
    try:
        value = await done(call())
    except kind as error:
        return error
    raise AssertionError(f"there was no {kind.__name__} but {value!r}")


def equal(found, expected):
    assert found == expected, f"{found!r} is not {expected!r}"


def contains(text, *parts):
    for part in parts:
        assert part in text, f"{part!r} is not in {text!r}"


async def lifecycle(world):
    sandbox = await world.new(metadata={"check": "lifecycle"})
    assert await done(sandbox.is_running())
    info = await done(sandbox.get_info())
    equal((info.sandbox_id, info.metadata), (sandbox.sandbox_id, {"check": "lifecycle"}))
    assert 0 < (info.end_at - info.started_at).total_seconds() <= TIMEOUT_S + 1, info
    again = await done(world.Sandbox.connect(sandbox.sandbox_id))
    equal((await done(again.commands.run("echo hello"))).stdout, "hello\n")
    equal(await done(sandbox.kill()), True)
    equal(await done(sandbox.kill()), False)
    equal(await done(sandbox.is_running()), False)
    from e2b import NotFoundException

    await raised(NotFoundException, lambda: world.Sandbox.connect(sandbox.sandbox_id))


async def commands(world):
    from e2b import CommandExitException

    run = world.sandbox.commands.run
    result = await done(run("echo out; echo err >&2"))
    equal((result.stdout, result.stderr, result.exit_code), ("out\n", "err\n", 0))
    error = await raised(CommandExitException, lambda: run("echo so far; exit 7"))
    equal((error.exit_code, error.stdout), (7, "so far\n"))
    equal((await done(run("echo $A", envs={"A": "é ü"}))).stdout, "é ü\n")
    equal((await done(run("pwd"))).stdout, "/home/user\n")
    equal((await done(run("pwd", cwd="/tmp"))).stdout, "/tmp\n")
    equal((await done(run("echo ~; echo $HOME"))).stdout, "/home/user\n" * 2)
    equal(len((await done(run("head -c 3000000 /dev/zero | tr '\\0' x"))).stdout), 3_000_000)


async def command_timeout(world):
    from e2b import TimeoutException

    await raised(TimeoutException, lambda: world.sandbox.commands.run("sleep 60", timeout=1))
    # The client gives up at the same time as the server kills the command.
    for _ in range(100):
        if not (left := await done(world.sandbox.commands.list())):
            break
        await asyncio.sleep(0.1)
    equal([process.args for process in left], [])


async def background(world):
    from e2b import CommandExitException

    commands = world.sandbox.commands
    handle = await done(commands.run("sleep 60", background=True))
    assert handle.pid in [process.pid for process in await done(commands.list())]
    equal(await done(commands.kill(handle.pid)), True)
    await raised(CommandExitException, handle.wait)
    equal(await done(commands.kill(handle.pid)), False)
    handle = await done(commands.run("read line; echo got $line", background=True, stdin=True))
    again = await done(commands.connect(handle.pid))
    await done(commands.send_stdin(handle.pid, "hello\n"))
    equal((await done(again.wait())).stdout, "got hello\n")


async def files(world):
    from e2b import FileType, NotFoundException

    files = world.sandbox.files
    equal((await done(files.write("folder/a.txt", "text é"))).path, "/home/user/folder/a.txt")
    equal(await done(files.read("/home/user/folder/a.txt")), "text é")
    equal(bytes(await done(files.read("folder/a.txt", format="bytes"))), "text é".encode())
    equal(await done(files.exists("folder/a.txt")), True)
    equal(await done(files.exists("folder/b.txt")), False)
    equal([(it.name, it.type) for it in await done(files.list("folder"))], [("a.txt", FileType.FILE)])
    equal(await done(files.make_dir("folder/new")), True)
    equal(await done(files.make_dir("folder/new")), False)
    equal((await done(files.rename("folder/a.txt", "folder/new/b.txt"))).path, "/home/user/folder/new/b.txt")
    await done(files.remove("folder"))
    equal(await done(files.exists("folder")), False)
    await raised(NotFoundException, lambda: files.read("folder/a.txt"))
    await raised(NotFoundException, lambda: files.list("folder"))
    # Commands and files see the same.
    await done(files.write("/tmp/from_api", b"\0\xff"))
    equal((await done(world.sandbox.commands.run("od -An -tx1 /tmp/from_api"))).stdout.strip(), "00 ff")
    await done(world.sandbox.commands.run("echo from a command > by_command"))
    equal(await done(files.read("by_command")), "from a command\n")


async def large_file(world):
    data = os.urandom(10_000_000)
    await done(world.sandbox.files.write("large", data))
    assert bytes(await done(world.sandbox.files.read("large", format="bytes"))) == data
    await done(world.sandbox.files.remove("large"))


async def ends_in_time(world):
    """The timeout is an end, and not an idle time. The exception says that the sandbox is not there any more."""
    from e2b import SandboxException

    sandbox = await world.new(timeout=2)
    for _ in range(100):
        if not await done(sandbox.is_running()):
            break
        await asyncio.sleep(0.1)
    error = await raised(SandboxException, lambda: sandbox.commands.run("true"))
    contains(str(error), "not found")


async def shape(world):
    """Folders that clients take for granted can be made and written."""
    run = world.sandbox.commands.run
    result = await done(run("mkdir -p /workspace && echo a > /workspace/b && touch /etc/x && cat /workspace/b && ls /etc/x"))
    equal(result.stdout, "a\n/etc/x\n")
    equal((await done(run("echo $BASH_VERSION | cut -c1"))).stdout.strip().isdigit(), True)


async def unknown_template(world):
    from e2b import SandboxException

    contains(str(await raised(SandboxException, lambda: world.new("no-such-template"))), "no-such-template", "base")


CORE = [lifecycle, commands, command_timeout, background, files, large_file, ends_in_time, shape, unknown_template]


async def outcome(check, world):
    try:
        async with asyncio.timeout(WITHIN_S):
            await check(world)
    except Exception as error:
        if "CHECKS_DEBUG" in os.environ:
            traceback.print_exc()
        text = str(error).splitlines() or [""]
        return f"fails: {type(error).__name__}: {text[0][:300]}"
    return "works"


async def outcomes(clients, checks):
    found = {}
    wanted = os.environ.get("CHECKS", "").split()
    for kind, Sandbox in clients.items():
        world = World(Sandbox)
        world.sandbox = await world.new()
        try:
            for check in checks:
                if not wanted or check.__name__ in wanted:
                    found[f"{check.__name__} ({kind})"] = await outcome(check, world)
                    if "CHECKS_DEBUG" in os.environ:
                        print(f"{check.__name__} ({kind}): {found[f'{check.__name__} ({kind})']}", file=sys.stderr)
        finally:
            await done(world.sandbox.kill())
    return found


def main(clients, checks, *packages):
    found = asyncio.run(outcomes(clients, checks))
    print(json.dumps({"versions": {name: version(name) for name in packages}, "checks": found}), flush=True)
    # Threads of the SDK's HTTP client can abort an interpreter that ends step by step.
    os._exit(0)
