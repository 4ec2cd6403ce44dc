"""The state of a server, as operators see it in a browser and in a terminal."""

import html
import json
import re
import struct
import subprocess
import urllib.request
import zlib
from pathlib import Path

import anyio
import pytest
from by_hand import CLIENT, post, request, run, tool
from faults import NO_POOL
from operators import asked, operated, values
from server import BINARY

pytestmark = pytest.mark.any_engine

# An image that is nowhere.
NO_IMAGE = "isolator/none:nowhere"


async def chromium(folder, *arguments):
    """Runs a new browser, and returns what it prints."""
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    command += ["--hide-scrollbars", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=6000", *arguments]
    with (folder / "chromium.log").open("w") as log, anyio.fail_after(120):
        done = await anyio.run_process(command, stdin=subprocess.DEVNULL, stderr=log)
    return done.stdout.decode()


async def read(url, uri):
    message = request(1, "resources/read", {"uri": uri, "_meta": CLIENT})
    status, body = await post(url, json.dumps(message).encode(), "resources/read", uri)
    assert status == 200 and "result" in json.loads(body), body


@pytest.mark.release
async def test_the_page_shows_what_happens_and_keeps_itself_up_to_date(tmp_path):
    async with operated(tmp_path, pool={"size": 2, "hot": 1}) as (url, admin, _):
        for number in range(12):
            await run(url, number, "print(1)")
        session = (await tool(url, 1, "open_session", language="python"))["session"]
        for number in range(5):
            await tool(url, 1, "execute_code", session=session, entrypoint_code=f"open('kept.txt', 'w').write('{number}')")
        await read(url, f"isolator://sessions/{session}/files/kept.txt")
        again = (await tool(url, 1, "open_session", language="python", replay=session))["session"]
        # Two looks are between the calls and the page.
        await anyio.sleep(6)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, url, 12, "import time; time.sleep(60)")
            page = await chromium(tmp_path, "--dump-dom", f"{admin}/status")
            tasks.cancel_scope.cancel()
        shown = text_of(page)
        assert re.search(r"Running now .*python 127\.0\.0\.1 (hot|warm|queued|cold) [\d.]+ m?s", shown), shown
        assert re.search(r"requests in the queue 0", shown), shown
        assert "All pools make sandboxes" in shown, shown
        assert re.search(r"ready \d of 2 \(\d thawed\)", shown), shown
        assert re.search(r"running a program 1 held by open sessions 2 being made \d", shown), shown
        # Both rates: what is now, and the mean since the server began.
        for kind in ("calls", "cells"):
            rates = re.search(rf"{kind}, now ([\d.]+) a second {kind}, last \d+ s ([\d.]+) a second", shown)
            assert rates and float(rates[2]) > 0, shown
        assert re.search(r"taken so far \d+ hot, \d+ warm, \d+ queued, \d+ cold so far 10 cells, 2 sessions opened", shown), shown
        for what in ("calls", "cells"):
            assert re.search(rf"time of {what} p50 [\d.]+ m?s p95 [\d.]+ m?s p99 [\d.]+ m?s", shown), shown
        # Each chart has the ends of both axes, with units.
        assert re.search(r"[\d.]+ m?s 0 \d+ s ago now", shown), shown
        assert re.search(r"[\d.]+ a second 0 \d+ s ago now", shown), shown

        state = json.loads((await asked(f"{admin}/status.json"))[2])
        python = state["pools"]["python"]
        intervals = [one["pools"]["python"] for one in state["intervals"]]
        assert sum(one["calls"] for one in intervals) == 12, state
        assert sum(one["cells"] for one in intervals) == python["cells"] == 10, state
        assert sum(one["sessions_opened"] for one in intervals) == python["sessions_opened"] == python["sessions"] == 2, state
        assert sum(one["starts"] for one in intervals) == sum(python["starts"].values()) == 14, state
        found = values((await asked(f"{admin}/metrics"))[2])
        assert found['isolator_cell_seconds_count{language="python"}'] == 10
        assert found['isolator_session_open_seconds_count{language="python"}'] == 2
        assert found['isolator_sandboxes{pool="python",state="session"}'] == 2
        await tool(url, 1, "close_session", session=again)
        ended = values((await asked(f"{admin}/metrics"))[2])
        assert ended['isolator_sessions_ended_total{reason="closed"}'] == 1 and ended['isolator_sessions_ended_total{reason="lost"}'] == 0
        assert (found["isolator_sessions_replayed_total"], found["isolator_session_files_read_total"]) == (1, 1)

    # The same page with other figures: calls, a pause, one call, a pause.
    state |= {"templates": 3, "template_bytes": 70 << 20}
    last = state["intervals"][-1]
    busy = python | {"calls": 20, "p50_ms": 2.0, "p95_ms": 30.0, "p99_ms": 41.0, "starts": 20, "ready_starts": 20}
    calm = {"calls": 0, "p50_ms": None, "p95_ms": None, "p99_ms": None, "starts": 0, "ready_starts": 0, "cells": 0}
    kinds = [busy] * 60 + [calm] * 60 + [busy] + [calm] * 59
    state["intervals"] = [last | {"pools": {"python": last["pools"]["python"] | kind}} for kind in kinds]
    shot = tmp_path / "gaps.png"
    page = await chromium(tmp_path, "--dump-dom", page_of(tmp_path, state))
    await chromium(tmp_path, f"--screenshot={shot}", "--window-size=1280,1400", page_of(tmp_path, state))
    lines = re.findall(r'<path d="([^"]*)" class="(one|two|three)"', page)
    times = [line for line, _ in lines if line.count("L") == 59]
    assert len(times) == 3 and all(line.count("M") == 2 for line in times), lines
    shown = text_of(page)
    assert "3 templates 70 MiB memory of templates" in shown, shown
    assert "50 ms 0 15 min ago now" in shown, shown
    assert "calls, now 0.00 a second calls, last 15 min 1.36 a second" in shown, shown


def text_of(page):
    page = re.sub(r"(?s)<(style|script)>.*?</\1>", "", page)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


def page_of(folder, state):
    """The page in a file, which shows this state."""
    parts = Path(__file__).parents[2] / "src/transport/http/status"
    script = f"const fetch = async () => ({{ ok: true, json: async () => ({json.dumps(state)}) }});\n"
    script += (parts / "page.js").read_text()
    page = (parts / "page.html").read_text().replace("STYLE", (parts / "page.css").read_text())
    (folder / "page.html").write_text(page.replace("SCRIPT", script))
    return (folder / "page.html").as_uri()


async def test_the_page_has_nothing_from_elsewhere_and_runs_nothing_else(tmp_path):
    async with operated(tmp_path, pool=NO_POOL) as (_, admin, _):
        with urllib.request.urlopen(f"{admin}/status") as answer:
            page, policy = answer.read().decode(), answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy, policy
        assert not re.search(r"(src|href)=\"(?!data:,)", page) and "url(" not in page and "import" not in page, page
        # The browser says in its log what the policy has kept it from.
        await chromium(tmp_path, "--enable-logging=stderr", "--dump-dom", f"{admin}/status")
        assert "Content Security Policy" not in (tmp_path / "chromium.log").read_text()


# Sizes and colours of screens.
LOOKS = {
    "light": ["--window-size=1280,1400", "--blink-settings=preferredColorScheme=1"],
    "dark": ["--window-size=1280,1400", "--blink-settings=preferredColorScheme=0"],
    "narrow": ["--window-size=500,2400", "--blink-settings=preferredColorScheme=1"],
}


def brightness(picture):
    """How bright the first pixel of a PNG is, from 0 to 255."""
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, width, channels = 8, b"", 0, 3
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, _, depth, colours = struct.unpack(">IIBB", body[:10])
            assert depth == 8 and colours in (2, 6)
            channels = 3 if colours == 2 else 4
        elif kind == b"IDAT":
            packed += body
        at += length + 12
    # Nothing is before the first pixel, so no filter changes it.
    line = zlib.decompress(packed)[1 : 1 + width * channels]
    return sum(line[:3]) / 3


@pytest.mark.release
@pytest.mark.parametrize("look", LOOKS)
async def test_the_page_fits_every_screen_also_with_twenty_languages(tmp_path, look):
    own = {"image": NO_IMAGE, "extensions": [".x"], "command": ["x", "{file}"], "description": "x"}
    languages = {f"language-{number}": own | {"extensions": [f".x{number}"], "enabled": True} for number in range(19)}
    async with operated(tmp_path, languages=languages, pool={"size": 1, "hot": 0}) as (_, admin, _):
        shot = tmp_path / f"{look}.png"
        await chromium(tmp_path, f"--screenshot={shot}", *LOOKS[look], f"{admin}/status")
        bright = brightness(shot)
        assert (bright < 80) == (look == "dark"), bright
        page = await chromium(tmp_path, "--dump-dom", *LOOKS[look], f"{admin}/status")
        assert page.count("<article") == 20, page
        assert "Not ready: no sandbox is ready for language-0, language-1, " in html.unescape(page)


async def test_the_state_is_shown_in_a_terminal(tmp_path):
    async with operated(tmp_path, pool={"size": 1, "hot": 1}) as (url, admin, _):
        for number in range(3):
            await run(url, number, "print(1)")
        await anyio.sleep(6)
        place = admin.removeprefix("http://")

        async def ask(*arguments):
            done = await anyio.run_process([BINARY, "status", *arguments], cwd=tmp_path, check=False)
            return done.returncode, done.stdout.decode(), done.stderr.decode()

        code, said, _ = await ask(place)
        assert code == 0 and re.search(r"^python +\d/1 +0 +0 +\d ", said, re.MULTILINE), said
        code, said, _ = await ask(place, "--json")
        assert code == 0 and sum(json.loads(said)["pools"]["python"]["starts"].values()) == 3, said
        live = await anyio.open_process([BINARY, "status", place, "--live"], cwd=tmp_path)
        async with live:
            shown = b""
            with anyio.fail_after(20):
                while shown.count(b"\x1b[2J") < 2:
                    shown += await live.stdout.receive()
            live.terminate()
            assert await live.wait() == 0
    code, _, said = await ask(place)
    assert code == 125 and place in said, said
    code, _, said = await ask()
    assert code == 125 and "admin.address" in said, said
