"""The log and the terminal of an operator, to which callers may write nothing of their own."""

import re
import subprocess

import pytest
from by_hand import by_hand, python, request
from faults import NO_POOL, configuration
from server import BINARY

pytestmark = pytest.mark.any_engine

FORGED = "x\n2026-01-01T00:00:00.000000Z ERROR isolator: forged\r\x1b[2J\x1b]0;t\x07\x9b31m\u202e\u2066\u200b\ufeff\u2028"

# Whatever moves a cursor, ends a line, turns the direction of text or is not seen.
SPECIAL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


async def test_a_caller_can_not_write_into_the_log(tmp_path, monkeypatch):
    monkeypatch.setenv("RUST_LOG", "info")
    with (tmp_path / "log").open("w") as log:
        async with by_hand(tmp_path, configuration(tmp_path, pool=NO_POOL), log) as server:
            await server.begin()
            await server.send(request(FORGED, "no/such"), request(f"2{FORGED}", FORGED))
            await server.send(request(f"3{FORGED}", "resources/read", {"uri": FORGED}))
            await server.send(python(f"4{FORGED}", "print(1)", language=FORGED))
            for number in ["", "2", "3", "4"]:
                await server.answer(number + FORGED, 30)
    said = (tmp_path / "log").read_text()
    assert r"x\n2026-01-01T00:00:00.000000Z ERROR isolator: forged\r\u001b[2J" in said, said
    assert not SPECIAL.search(said), said
    assert all(re.match(r"[0-9-]{10}T[0-9:.]+Z +(ERROR|WARN|INFO) ", line) for line in said.splitlines()), said
    assert not re.search("^2026-01-01T00:00:00.000000Z", said, re.MULTILINE), said


@pytest.mark.parametrize("command", [["image", "rm"], ["image", "pull"], ["run"]])
def test_an_error_of_a_command_does_nothing_to_a_terminal(tmp_path, command):
    name = "x\x1b[2J\x9b31m\u202e\u200b"
    done = subprocess.run(
        [BINARY, "--engine", "embedded", *command, name], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 125 and done.stderr.strip(), done
    assert not SPECIAL.search(done.stderr), done.stderr
