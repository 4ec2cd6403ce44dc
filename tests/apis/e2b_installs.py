"""Packages that processes of E2B's sandboxes install, with the newest SDK for Python."""

import asyncio

from e2b import AsyncSandbox, CommandExitException, PtySize, Sandbox
from e2b_checks import contains, done, equal, main, raised


async def by_a_command(world):
    run = world.sandbox.commands.run
    contains((await done(run("pip install 'alpha<2'"))).stdout, "Successfully installed alpha-1.1 gamma-1.0\n")
    # Its modules, its commands, and what it says about itself.
    equal((await done(run("python3 -c 'import alpha; print(alpha.version)'; alpha"))).stdout, "1.1\nalpha runs 3\n")
    contains((await done(run("python3 -m pip install alpha"))).stdout, "Requirement already satisfied: alpha in ", "(1.1)")
    contains((await done(run("uv pip install --system -q alpha && pip list"))).stdout, "alpha")


async def in_the_background(world):
    commands = world.sandbox.commands
    # Python reads a file of this package when it starts.
    handle = await done(commands.run("pip install -q hook && python3 -c 'import sys, hook_extra; print(sys.hooked)'", background=True))
    equal((await done(handle.wait())).stdout, "True\n")


async def in_a_terminal(world):
    pty, shown = world.sandbox.pty, []

    def see(data):
        shown.append(bytes(data))

    is_async = world.Sandbox is AsyncSandbox
    handle = await done(pty.create(PtySize(24, 200), **({"on_data": see} if is_async else {})))
    line = "pip install odd-name.pkg && python3 -c 'import odd_name; print(odd_name.x + 41)' > /tmp/shown; exit 0\n"
    await done(pty.send_stdin(handle.pid, line.encode()))
    await done(handle.wait() if is_async else handle.wait(on_pty=see))
    contains(b"".join(shown).decode(), "Successfully installed odd-name-pkg-1.0")
    equal(await done(world.sandbox.files.read("/tmp/shown")), "42\n")


async def at_the_same_time(world):
    run = world.sandbox.commands.run
    handles = [await done(run(f"pip install {name}", background=True)) for name in ("gamma", "alpha==1.0", "hook", "odd-name.pkg")]
    for handle in handles:
        await done(handle.wait())
    check = "import alpha, gamma, odd_name, sys; print(alpha.version, odd_name.x, sys.hooked)"
    equal((await done(run(f"python3 -c '{check}'"))).stdout, "1.0 1 True\n")


async def refused(world):
    run = world.sandbox.commands.run
    error = await raised(CommandExitException, lambda: run("pip install shadow"))
    equal((error.exit_code, error.stdout), (1, "Collecting shadow\n"))
    contains(error.stderr, "ERROR: the operator does not allow", "shadow")


async def given_up(world):
    """A process that is killed while it waits takes nothing along."""
    commands = world.sandbox.commands
    handle = await done(commands.run("pip install 'alpha>=2'", background=True))
    await asyncio.sleep(0.1)
    await done(handle.kill())
    equal((await done(commands.run("pip install -q 'alpha>=2' && python3 -c 'import alpha; print(alpha.version)'"))).stdout, "2.0\n")


CHECKS = [by_a_command, in_the_background, in_a_terminal, at_the_same_time, refused, given_up]
main({"sync": Sandbox, "async": AsyncSandbox}, CHECKS, "e2b")
