"""What a caller is told while its program runs, if it asks for it."""

import anyio
import engine
from server import until

PROGRAM = """\
import sys, time
print("first", flush=True)
time.sleep(0.5)
print("second", file=sys.stderr, flush=True)
time.sleep(5.5)
print("third")
"""


async def test_a_caller_is_told_what_is_printed_and_hears_something_when_nothing_is(server):
    told = []

    async def tell(progress, total, message):
        told.append((anyio.current_time(), progress, message))

    began = anyio.current_time()
    arguments = {"language": "python", "entrypoint_code": PROGRAM}
    result = await server.client.call_tool("execute_code", arguments, progress_callback=tell)
    ended = anyio.current_time()
    assert result.structured_content["stdout"] == "first\nthird\n"
    said = [message for _, _, message in told if message]
    assert "".join(said).startswith("first\nsecond\n"), told
    first = next(time for time, _, message in told if message)
    assert first - began < ended - first, "not only at the end"
    assert any(not message for _, _, message in told), "a sign of life"
    progresses = [progress for _, progress, _ in told]
    assert progresses == sorted(set(progresses)), "each is more than the one before"


async def test_a_call_that_is_given_up_ends_its_program(server):
    code = "import time; print('begun', flush=True); time.sleep(600)"
    begun = anyio.Event()

    async def tell(progress, total, message):
        if message:
            begun.set()

    async with anyio.create_task_group() as calls:
        arguments = {"language": "python", "entrypoint_code": code, "timeout": "2m"}
        calls.start_soon(lambda: server.client.call_tool("execute_code", arguments, progress_callback=tell))
        with anyio.fail_after(60):
            await begun.wait()
        there = sandboxes(server)
        calls.cancel_scope.cancel()
    await until(lambda: there - sandboxes(server), 30, "its sandbox is gone")


def sandboxes(server):
    return {sandbox.id for sandbox in engine.sandboxes(server.instance)}
