"""Progress of a running program, for callers that ask for it."""

import anyio
import pytest

PRINTS = """\
import sys, time
print("first", flush=True)
time.sleep(0.5)
print("second", file=sys.stderr, flush=True)
time.sleep(1.5)
print("third")
"""


async def call(server, code):
    """Runs a program. Returns its result, and its progress with times, from the beginning to the end."""
    told = []

    async def tell(progress, total, message):
        told.append((anyio.current_time(), progress, message))

    began = anyio.current_time()
    arguments = {"language": "python", "entrypoint_code": code}
    result = await server.client.call_tool("execute_code", arguments, progress_callback=tell)
    progresses = [progress for _, progress, _ in told]
    assert progresses == sorted(set(progresses)), "each is more than the one before"
    return result, told, began, anyio.current_time()


@pytest.mark.every_server
@pytest.mark.any_engine
async def test_progress_has_the_output(server):
    result, told, began, ended = await call(server, PRINTS)
    assert result.structured_content["stdout"] == "first\nthird\n"
    said = [message for _, _, message in told if message]
    assert "".join(said).startswith("first\nsecond\n"), told
    first = next(time for time, _, message in told if message)
    assert ended - first > 0.5, "not only at the end"


@pytest.mark.any_engine
async def test_progress_has_signs_of_life(server):
    _, told, _, _ = await call(server, "import time; time.sleep(6)")
    assert any(not message for _, _, message in told), "a sign of life"
