"""The state of a server, as operators see it in a browser and in a terminal."""

import html
import json
import re
import struct
import subprocess
import urllib.request
import zlib

import anyio
import pytest
from by_hand import run
from faults import NO_POOL
from operators import asked, operated
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


async def test_the_page_shows_what_happens_and_keeps_itself_up_to_date(tmp_path):
    async with operated(tmp_path, pool={"size": 2, "hot": 1}) as (url, admin, _):
        for number in range(12):
            await run(url, number, "print(1)")
        # Two looks are between the calls and the page.
        await anyio.sleep(6)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, url, 12, "import time; time.sleep(60)")
            page = await chromium(tmp_path, "--dump-dom", f"{admin}/status")
            tasks.cancel_scope.cancel()
        shown = html.unescape(re.sub(r"<[^>]+>", " ", page))
        assert re.search(r"(?s)Running now .*python\s+127\.0\.0\.1\s+(hot|warm|queued|cold)\s+[\d.]+ m?s", shown), shown
        assert re.search(r"requests in the queue\s+0", shown), shown
        assert "All pools make sandboxes" in shown, shown
        assert re.search(r"ready\s+\d of 2 \(\d thawed\)", shown), shown
        assert re.search(r"starts so far\s+\d+ hot, \d+ warm, \d+ queued, \d+ cold", shown), shown
        assert re.search(r"p50 [\d.]+ m?s\s+p95 [\d.]+ m?s\s+p99 [\d.]+ m?s", shown), shown
        assert re.search(r'<polyline points="[\d.]+,', page), page

        state = json.loads((await asked(f"{admin}/status.json"))[2])
        assert sum(state["pools"]["python"]["starts"].values()) == 12, state
        assert sum(one["pools"]["python"]["calls"] for one in state["intervals"]) == 12, state


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
        assert code == 0 and re.search(r"^python +\d/1 +0 +\d ", said, re.MULTILINE), said
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
