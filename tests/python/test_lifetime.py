"""What a server holds while it idles, and that it leaves nothing behind."""

import os
import signal
from collections import Counter

import anyio
import engine
import processes
import pytest
from programs import HELLO
from server import isolator, until

# The shipped configuration keeps two sandboxes for each of three languages.
POOLED = 6
# An image that was just built is cold in the page cache.
FILLED_WITHIN_S = 60


def is_full(instance):
    def check():
        states = Counter(sandbox.state for sandbox in engine.sandboxes(instance))
        # One of each language stays thawed. The others are paused when everything is in them.
        return states["running"] == states["paused"] == POOLED / 2 and states.total() == POOLED

    return check


async def test_an_idle_server_holds_paused_sandboxes_and_costs_no_cpu(tmp_path):
    async with isolator(tmp_path) as server:
        await until(is_full(server.instance), FILLED_WITHIN_S, "full pools")
        # The last sandbox is there before it is paused.
        await anyio.sleep(2)
        before = processes.cpu_seconds(server.pid)
        await anyio.sleep(10)
        share = (processes.cpu_seconds(server.pid) - before) / 10

        paused = {
            sandbox.image
            for sandbox in engine.sandboxes(server.instance)
            if sandbox.state == "paused"
        }
        assert paused == {engine.image_id(f"isolator/{language}") for language in HELLO}
        assert share < 0.005, f"{share:.2%} of a core while idle"


async def test_a_call_takes_a_waiting_sandbox_and_it_is_replaced(tmp_path):
    async with isolator(tmp_path) as server:
        await until(is_full(server.instance), FILLED_WITHIN_S, "full pools")
        before = {sandbox.id for sandbox in engine.sandboxes(server.instance)}
        result = await server.call(language="python", entrypoint_code=HELLO["python"])
        assert result.structured_content["receipt"]["start"] in {"hot", "warm"}

        def is_replaced():
            now = {sandbox.id for sandbox in engine.sandboxes(server.instance)}
            return len(now) == POOLED and len(now - before) == 1

        await until(is_replaced, FILLED_WITHIN_S, "a sandbox in the place of the used one")


# The end of `isolator` asserts in each of these tests that nothing is left.


@pytest.mark.parametrize("milliseconds", range(0, 300, 20))
async def test_nothing_is_left_however_early_the_client_closes(tmp_path, milliseconds):
    async with isolator(tmp_path):
        await anyio.sleep(milliseconds / 1000)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_nothing_is_left_when_the_client_closes_while_the_pools_fill(tmp_path, mode):
    async with isolator(tmp_path, mode) as server:
        assert (await server.call(language="go", entrypoint_code=HELLO["go"])).is_error is False
        assert engine.sandboxes(server.instance)


async def test_nothing_is_left_after_a_signal_in_the_middle_of_a_call(tmp_path):
    async with isolator(tmp_path) as server:

        async def call():
            try:
                await server.call(language="python", entrypoint_code="import time; time.sleep(60)")
            except Exception:
                # The server went away in the middle of it, as it should.
                pass

        async with anyio.create_task_group() as calls:
            calls.start_soon(call)
            await anyio.sleep(2)
            os.kill(server.pid, signal.SIGTERM)
            await until(lambda: is_gone(server.pid), 30, "the end of the server")
            calls.cancel_scope.cancel()


async def test_what_a_killed_server_left_is_swept_by_the_next(tmp_path):
    async with isolator(tmp_path) as killed:
        instance, pid = killed.instance, killed.pid
        await until(is_full(instance), FILLED_WITHIN_S, "full pools")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: is_gone(pid), 10, "the end of the server")
        # In the same state directory, by which the second knows that the first is dead.
        async with isolator(tmp_path) as server:
            await until(lambda: not engine.left(instance, tmp_path), 30, "the sweep")
            await until(is_full(server.instance), FILLED_WITHIN_S, "full pools")


def is_gone(pid):
    return processes.state(pid) in {None, "Z"}
