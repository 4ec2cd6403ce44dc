"""A server with the shipped configuration while it idles, and when it is started by hand."""

import os
import pty
from collections import Counter

import anyio
import engine
import processes
import pytest
from programs import HELLO
from server import CONFIG, command, configuration, environment, isolator, receipt, until

# The shipped configuration keeps two sandboxes for each of three languages.
POOLED = 6
# An image that was just built is cold in the page cache.
FILLED_WITHIN_S = 60


@pytest.fixture(scope="module")
async def filled(anyio_backend, tmp_path_factory):
    """A server whose pools are full."""
    async with isolator(tmp_path_factory.mktemp("state"), "stdio-auto", CONFIG) as server:
        await until(lambda: is_full(server), FILLED_WITHIN_S, "full pools")
        yield server


def is_full(server):
    states = Counter(sandbox.state for sandbox in engine.sandboxes(server.instance))
    # One of each language stays thawed. The others are paused when everything is in them.
    return states["running"] == states["paused"] == POOLED / 2 and states.total() == POOLED


@pytest.mark.alone
async def test_an_idle_server_holds_paused_sandboxes_and_costs_no_cpu(filled):
    # The last sandbox is there before it is paused.
    await anyio.sleep(2)
    before = processes.cpu_seconds(filled.pid)
    await anyio.sleep(5)
    share = (processes.cpu_seconds(filled.pid) - before) / 5

    sandboxes = engine.sandboxes(filled.instance)
    paused = {sandbox.image for sandbox in sandboxes if sandbox.state == "paused"}
    assert paused == {engine.image_id(f"isolator/{language}") for language in HELLO}
    assert share < 0.005, f"{share:.2%} of a core while idle"


async def test_a_call_takes_a_waiting_sandbox_and_it_is_replaced(filled):
    before = filled.sandboxes()
    result = await filled.call(language="python", entrypoint_code=HELLO["python"])
    assert receipt(result)["start"] in {"hot", "warm"}

    def is_replaced():
        now = filled.sandboxes()
        return len(now) == POOLED and len(now - before) == 1

    await until(is_replaced, FILLED_WITHIN_S, "a sandbox in the place of the used one")


@pytest.mark.any_engine
async def test_on_a_terminal_the_server_says_that_it_waits_for_messages(tmp_path):
    """Hosts have none, so it was started by hand."""
    terminal, its_end = pty.openpty()
    started = command(configuration(tmp_path, pool={"size": 0, "hot": 0}))
    async with await anyio.open_process(started, env=environment(tmp_path), stdin=its_end) as process:
        os.close(its_end)
        said = b""
        with anyio.fail_after(30):
            while b"using the engine" not in said:
                said += await process.stderr.receive()
            # The key for the end of the input.
            os.write(terminal, b"\x04")
            assert await process.wait() == 0
    os.close(terminal)
    for hint in [b"waiting for MCP messages", b"isolator install HOST", b"--http 8000", b"isolator run FILE"]:
        assert hint in said, said
