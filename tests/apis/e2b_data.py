"""Processes and files with the newest SDK for Python, with all that it can ask for."""

import asyncio
import io
import os
import time

from e2b import (
    AsyncSandbox,
    CommandExitException,
    FilesystemEventType,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    TimeoutException,
)
from e2b_checks import contains, done, equal, main, raised


async def output_comes_while_the_command_runs(world):
    began, seen = time.monotonic(), []
    command = "echo first; sleep 1; echo second >&2; sleep 1; echo third"

    def see(text):
        seen.append((text, time.monotonic() - began))

    result = await done(world.sandbox.commands.run(command, on_stdout=see, on_stderr=see))
    equal([text for text, _ in seen], ["first\n", "second\n", "third\n"])
    assert seen[0][1] < 0.9 < seen[1][1] < 1.9 < seen[2][1], seen
    equal((result.stdout, result.stderr), ("first\nthird\n", "second\n"))


async def letters_are_whole(world):
    """Output is cut anywhere, also in the middle of a letter."""
    text = "é漢🎉" * 30_000
    await done(world.sandbox.files.write("letters", text))
    equal((await done(world.sandbox.commands.run("cat letters"))).stdout, text)


async def left_and_found_again(world):
    commands = world.sandbox.commands
    handle = await done(commands.run("for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done; exit 4", background=True))
    await done(handle.disconnect())
    assert handle.pid in [process.pid for process in await done(commands.list())]
    again = await done(commands.connect(handle.pid))
    error = await raised(CommandExitException, again.wait)
    equal(error.exit_code, 4)
    contains(error.stdout, "5\n6\n")
    # Its end is kept for a moment.
    late = await done(commands.connect(handle.pid))
    equal((await raised(CommandExitException, late.wait)).exit_code, 4)
    await raised(NotFoundException, lambda: commands.connect(999_999))


async def killed(world):
    commands = world.sandbox.commands
    handle = await done(commands.run("sleep 60 & sleep 60", background=True))
    equal(await done(handle.kill()), True)
    error = await raised(CommandExitException, handle.wait)
    equal((error.exit_code, error.error), (-1, "signal: killed"))
    equal(await done(handle.kill()), False)


async def time_is_over_also_for_a_command_that_was_left(world):
    commands = world.sandbox.commands
    handle = await done(commands.run("sleep 61", background=True, timeout=1))
    await done(handle.disconnect())
    await asyncio.sleep(2)
    equal([it.pid for it in await done(commands.list()) if it.pid == handle.pid], [])
    handle = await done(commands.run("sleep 62", background=True, timeout=1))
    await raised(TimeoutException, handle.wait)


async def listed(world):
    commands = world.sandbox.commands
    handle = await done(commands.run("sleep 60", background=True, envs={"A": "b"}, cwd="/tmp"))
    try:
        (process,) = [it for it in await done(commands.list()) if it.pid == handle.pid]
        equal((process.cmd, process.args, process.cwd, process.tag), ("/bin/bash", ["-l", "-c", "sleep 60"], "/tmp", None))
        equal(process.envs["A"], "b")
    finally:
        await done(handle.kill())


async def input_(world):
    commands = world.sandbox.commands
    handle = await done(commands.run("sort", background=True, stdin=True))
    await done(commands.send_stdin(handle.pid, "b\n"))
    await done(handle.send_stdin(b"a\n"))
    await done(handle.close_stdin())
    equal((await done(handle.wait())).stdout, "a\nb\n")
    await raised(SandboxException, lambda: commands.send_stdin(handle.pid, "late"))
    handle = await done(commands.run("wc -c", background=True))
    equal((await done(handle.wait())).stdout, "0\n")


async def stream_of_input(world):
    commands = world.sandbox.commands
    handle = await done(commands.run("sha256sum", background=True, stdin=True))
    pieces = [os.urandom(100_000) for _ in range(20)]

    async def send(pid, pieces):
        if world.Sandbox is not AsyncSandbox:
            return commands.stream_input(pid, pieces)
        stream = commands.stream_input(pid)
        for piece in pieces:
            await stream.send(piece)
        await stream.close()

    await send(handle.pid, pieces)
    await done(commands.close_stdin(handle.pid))
    import hashlib

    contains((await done(handle.wait())).stdout, hashlib.sha256(b"".join(pieces)).hexdigest())
    await raised(NotFoundException, lambda: send(999_999, [b"x"]))


async def terminal(world):
    pty, shown = world.sandbox.pty, []

    def see(data):
        shown.append(bytes(data))

    is_async = world.Sandbox is AsyncSandbox
    handle = await done(pty.create(PtySize(24, 80), **({"on_data": see} if is_async else {}), envs={"A": "b"}, cwd="/tmp"))
    await done(pty.send_stdin(handle.pid, b"stty size; pwd; echo $A-$TERM; touch /tmp/shown\n"))
    while not await done(world.sandbox.files.exists("/tmp/shown")):
        await asyncio.sleep(0.05)
    await done(world.sandbox.files.remove("/tmp/shown"))
    await done(pty.resize(handle.pid, PtySize(30, 100)))
    await done(pty.send_stdin(handle.pid, b"stty size; exit 0\n"))
    await done(handle.wait() if is_async else handle.wait(on_pty=see))
    contains(b"".join(shown).decode(), "24 80", "/tmp", "b-xterm-256color", "30 100")
    handle = await done(pty.create(PtySize(24, 80), **({"on_data": see} if is_async else {})))
    equal(await done(pty.kill(handle.pid)), True)
    while handle.pid in [process.pid for process in await done(world.sandbox.commands.list())]:
        await asyncio.sleep(0.05)
    equal(await done(pty.kill(handle.pid)), False)


async def refused_commands(world):
    commands = world.sandbox.commands
    contains(str(await raised(InvalidArgumentException, lambda: commands.run("true", cwd="/none"))), "/none")
    contains(str(await raised(InvalidArgumentException, lambda: commands.run("true", user="root"))), "root")
    equal((await done(commands.run("id -un", user="user"))).exit_code, 0)


async def files(world):
    files = world.sandbox.files
    equal(await done(files.write("a", "text")) and await done(files.read("a")), "text")
    info = await done(files.get_info("a"))
    equal((info.path, info.size, info.permissions, info.mode), ("/home/user/a", 4, "-rw-r--r--", 0o644))
    assert abs(info.modified_time.timestamp() - time.time()) < 60, info
    await done(files.write("a", ""))
    equal(await done(files.read("a")), "")
    await done(files.remove("a"))
    await done(files.remove("a"))
    for call in [files.read, files.list, files.get_info]:
        await raised(NotFoundException, lambda call=call: call("a"))
    await raised(NotFoundException, lambda: files.rename("a", "b"))
    await done(files.make_dir("folder/sub"))
    contains(str(await raised(InvalidArgumentException, lambda: files.read("folder"))), "folder")
    await raised(SandboxException, lambda: files.write("folder", "x"))
    contains(str(await raised(InvalidArgumentException, lambda: files.read("a", user="root"))), "root")


async def large_files(world):
    data = os.urandom(10_000_000)
    files = world.sandbox.files

    def pieces():
        for at in range(0, len(data), 65_536):
            yield data[at : at + 65_536]

    async def pieces_later():
        for piece in pieces():
            yield piece

    ways = [data, io.BytesIO(data), pieces_later() if world.Sandbox is AsyncSandbox else pieces()]
    for way in ways:
        await done(files.write("large", way))
        assert bytes(await done(files.read("large", format="bytes"))) == data
    await done(files.write("large", data, gzip=True))
    assert bytes(await done(files.read("large", format="bytes", gzip=True))) == data
    stream, whole = await done(files.read("large", format="stream")), b""
    if world.Sandbox is AsyncSandbox:
        async for piece in stream:
            whole += piece
    else:
        whole = b"".join(stream)
    assert whole == data
    contains((await done(world.sandbox.commands.run("wc -c < large"))).stdout, "10000000")
    await done(files.remove("large"))


async def full(world):
    error = await raised(NotEnoughSpaceException, lambda: world.sandbox.files.write("/tmp/full", bytes(1_500_000_000)))
    contains(str(error), "space")
    equal(await done(world.sandbox.files.exists("/tmp/full")), False)


async def watched(world):
    files, events = world.sandbox.files, []
    await done(files.make_dir("watched/sub"))
    is_async = world.Sandbox is AsyncSandbox
    watcher = await done(files.watch_dir("watched", *([events.append] if is_async else []), recursive=True))

    async def wait_for(name, kind):
        for _ in range(100):
            if not is_async:
                events.extend(watcher.get_new_events())
            if any((event.name, event.type) == (name, kind) for event in events):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"there is no {kind} of {name} in {events}")

    await done(files.write("watched/sub/new", "1"))
    await wait_for("sub/new", FilesystemEventType.CREATE)
    await done(world.sandbox.commands.run("echo 2 >> watched/sub/new"))
    await wait_for("sub/new", FilesystemEventType.WRITE)
    await done(world.sandbox.commands.run("chmod 600 watched/sub/new"))
    await wait_for("sub/new", FilesystemEventType.CHMOD)
    await done(files.remove("watched/sub/new"))
    await wait_for("sub/new", FilesystemEventType.REMOVE)
    await done(watcher.stop())
    await raised(NotFoundException, lambda: files.watch_dir("none", *([print] if is_async else [])))


async def killed_with_its_sandbox(world):
    sandbox = await world.new()
    handle = await done(sandbox.commands.run("sleep 60", background=True))
    await done(sandbox.kill())
    error = await raised(SandboxException, handle.wait)
    contains(str(error), "sandbox was killed")
    error = await raised(SandboxException, lambda: sandbox.files.read("a"))
    contains(str(error), "not found")


CHECKS = [
    output_comes_while_the_command_runs,
    letters_are_whole,
    left_and_found_again,
    killed,
    time_is_over_also_for_a_command_that_was_left,
    listed,
    input_,
    stream_of_input,
    terminal,
    refused_commands,
    files,
    large_files,
    full,
    watched,
    killed_with_its_sandbox,
]
main({"sync": Sandbox, "async": AsyncSandbox}, CHECKS, "e2b")
