"""Sizes of pools: those that follow the calls, and those that `isolator tune` advises."""

import json
import os
import re
import xml.etree.ElementTree as ElementTree

import anyio
import engine
import pytest
from by_hand import run
from faults import configuration
from operators import ANY_PORT, asked, free_port, operated, values
from server import BINARY, environment

pytestmark = pytest.mark.any_engine

AT_ONCE = 6
NO_IMAGE = "isolator-test.invalid/missing"


async def state(admin):
    """The only pool."""
    _, _, text = await asked(f"{admin}/status.json")
    return json.loads(text)["pools"]["python"]


async def is_full(admin, at_least=0):
    async def check():
        pool = await state(admin)
        return pool["size"] >= at_least and pool["hot"] + pool["paused"] == pool["size"] and pool["making"] == 0

    with anyio.fail_after(60):
        while not await check():
            await anyio.sleep(0.05)


async def fan_out(url, admin, times=1):
    """An agent that makes some calls at once, and then thinks for longer than their sandboxes take. Returns how each got its own."""
    starts = []

    async def call(number):
        status, body = await run(url, number, "print(1)")
        assert status == 200, body
        starts.append(json.loads(body)["result"]["_meta"]["isolator/receipt"]["start"])

    for _ in range(times):
        async with anyio.create_task_group() as calls:
            for number in range(AT_ONCE):
                calls.start_soon(call, number)
        pool = await state(admin)
        await anyio.sleep(max(0.5, AT_ONCE * (pool["delay_ms"] + pool["making_ms"]) / 1000))
    return starts


def warm(starts):
    return sum(start in ("hot", "warm") for start in starts) / len(starts)


async def tune(folder, *arguments, config=None):
    """Exit code, standard output and standard error."""
    chosen = ["--config", str(config)] if config else []
    command = [BINARY, "--engine", engine.KIND, "tune", *chosen, *map(str, arguments)]
    with anyio.fail_after(120):
        done = await anyio.run_process(command, cwd=folder, check=False, env=environment(folder))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_the_advice_for_an_agent_keeps_the_warm_share_that_it_promises(tmp_path):
    settings = {"pool": {"size": 1, "hot": 1}, "audit": {"path": "audit.jsonl"}}
    async with operated(tmp_path, **settings) as (url, admin, _):
        await is_full(admin)
        before = warm(await fan_out(url, admin, 12))
        place = admin.removeprefix("http://")
        config = configuration(tmp_path, **settings)
        code, said, notes = await tune(tmp_path, place, "--json", config=config)
        assert code == 0, notes
        seen = json.loads(said)["pools"][0]
        chart = tmp_path / "chart.svg"
        arguments = [place, "--audit", tmp_path / "audit.jsonl", "--svg", chart]
        code, said, notes = await tune(tmp_path, *arguments, config=config)
        assert code == 0, notes
        sentence = r"^python: \d.* in the busiest minute, a sandbox takes \d+ ms: (\d+) keeps? .*% of calls warm and takes? \d+ MiB \(now 1: .*\)$"
        size = int(re.search(sentence, said, re.MULTILINE)[1])
        code, said, notes = await tune(tmp_path, *arguments, "--json", "--write", config=config)
        assert code == 0, notes
    (logged,) = json.loads(said)["pools"]
    assert (logged["language"], logged["calls"], logged["size"]) == ("python", 12 * AT_ONCE, size)
    # The log and the server have seen the same calls.
    assert seen["calls"] == logged["calls"] and abs(seen["size"] - size) <= 1, (seen, logged)
    assert size > 1 and logged["warm"] >= 0.99 > logged["warm_now"], logged
    texts = [element.text.strip() for element in ElementTree.parse(chart).iter("{http://www.w3.org/2000/svg}text")]
    assert "python" in texts and any(text.startswith("Large point") for text in texts), texts

    written = json.loads(config.read_text())
    assert written["languageSettings"]["python"].pop("pool") == {"size": size}
    assert written == json.loads((tmp_path / f"{config.name}.before-isolator").read_text())
    again = {"python": {"enabled": True, "pool": {"size": size}}}
    async with operated(tmp_path, languages=again, **settings) as (url, admin, _):
        await is_full(admin)
        after = warm(await fan_out(url, admin, 12))
    print(f"\nbefore {before:.1%}, promised {logged['warm']:.1%}, after {after:.1%} with {size}")
    assert after >= logged["warm"] - 0.03 and after > before, (before, logged["warm"], after)


async def test_a_pool_follows_its_calls(tmp_path):
    async with operated(tmp_path, pool={"size": {"min": 1, "max": 8}, "memoryMB": 2048}) as (url, admin, _):
        await is_full(admin)
        assert (await state(admin))["size"] == 1
        assert warm(await fan_out(url, admin)) < 0.5
        await is_full(admin, at_least=AT_ONCE - 1)
        assert warm(await fan_out(url, admin)) >= (AT_ONCE - 1) / AT_ONCE
        _, _, text = await asked(f"{admin}/metrics")
        found = values(text)
        names = ("isolator_pool_min_sandboxes", "isolator_pool_wanted_sandboxes", "isolator_pool_max_sandboxes")
        least, wanted, most = (found[f'{name}{{pool="python"}}'] for name in names)
        assert (least, most) == (1, 8) and AT_ONCE - 1 <= wanted <= 8
        code, said, notes = await tune(tmp_path, admin.removeprefix("http://"), config=tmp_path / "config.json")
        assert code == 0 and "follows the calls by itself" in said, (said, notes)


async def test_the_advice_is_in_effect_after_a_reload(tmp_path):
    settings = {"pool": {"size": {"min": 1, "max": 8}}, "admin": {"address": ANY_PORT}}
    async with operated(tmp_path, **settings) as (url, admin, _):
        await is_full(admin)
        await fan_out(url, admin)
        await is_full(admin, at_least=AT_ONCE - 1)
        place = admin.removeprefix("http://")
        config = configuration(tmp_path, **settings | {"pool": {"size": 1}, "audit": {}})
        code, said, notes = await tune(tmp_path, place, "--write", "--json", config=config)
        assert code == 0, notes
        size = json.loads(said)["pools"][0]["size"]
        assert size >= AT_ONCE - 1
        done = await anyio.run_process([BINARY, "reload", place], check=False)
        assert done.returncode == 0, done
        pool = await state(admin)
        assert (pool["min"], pool["size"], pool["max"]) == (size, size, size)
        # Less than what waits: the others are removed.
        configuration(tmp_path, **settings | {"pool": {"size": 2}})
        done = await anyio.run_process([BINARY, "reload", place], check=False)
        assert done.returncode == 0, done
        await is_full(admin)
        assert (await state(admin))["size"] == 2
        assert warm(await fan_out(url, admin)) >= 2 / AT_ONCE


def line(language, start="hot", time="2026-03-01T12:00:00.000Z"):
    bytes_ = {"code": 1, "files": 0, "stdout": 0, "stderr": 0, "returned": 0}
    call = {"time": time, "client": "c", "tool": "execute_code", "language": language, "start": start}
    return json.dumps(call | {"status": "success", "ms": 4.0, "bytes": bytes_}) + "\n"


async def test_without_a_server_some_sandboxes_are_measured(tmp_path):
    log = tmp_path / "audit.jsonl"
    log.write_text(line("python") * 300 + line("cobol") + "rubbish\n" + line("python")[:50])
    config = configuration(tmp_path)
    code, said, notes = await tune(tmp_path, f"127.0.0.1:{free_port()}", "--audit", log, "--json", config=config)
    assert code == 0, notes
    report = json.loads(said)
    (pool,) = report["pools"]
    assert pool["calls"] == 300 and 0 < pool["lead_ms"] < 60_000 and pool["sandbox_bytes"] > 0, pool
    notes = "\n".join(report["notes"])
    for told in ("ends in the middle of a line", "1 lines of", "1 calls of cobol are left out", "some sandboxes were made"):
        assert told in notes, (told, notes)


async def test_what_can_not_be_advised_is_told(tmp_path):
    log, config = tmp_path / "audit.jsonl", configuration(tmp_path)
    nowhere = f"127.0.0.1:{free_port()}"

    async def refused(*arguments, config=config):
        code, said, told = await tune(tmp_path, *arguments, config=config)
        assert code == 125 and not said, (code, said)
        return told

    assert nowhere in await refused(nowhere)
    assert "or an audit log with --audit" in await refused()
    assert "no such file" in await refused("--audit", log)
    log.write_text("")
    assert "no line of it is one of an audit log" in await refused("--audit", log)
    log.write_text(line("cobol"))
    assert "all calls are of cobol, and the configuration has python" in await refused("--audit", log)
    log.write_text(line("python", start=None))
    assert "no calls were seen yet" in await refused("--audit", log)
    async with operated(tmp_path, languages={"python": {"image": NO_IMAGE}}) as (_, admin, _):
        assert "no calls were seen yet" in await refused(admin.removeprefix("http://"))


async def test_a_configuration_that_can_not_be_written_is_left(tmp_path):
    config = configuration(tmp_path, languages={"python": {"enabled": True, "pool": {"size": 9}}})
    before = config.read_text()
    log = tmp_path / "audit.jsonl"
    log.write_text(line("python"))
    # The user may be root, who can write everywhere but there.
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && cd / && exec "$@"'
    isolated = ["unshare", "--mount", "sh", "-c", script, str(tmp_path)] if os.geteuid() == 0 else []
    if not isolated:
        tmp_path.chmod(0o500)
    state = tmp_path.parent / "state"
    state.mkdir(exist_ok=True)
    command = [*isolated, BINARY, "--engine", engine.KIND, "--config", str(config)]
    command += ["tune", "--audit", str(log), "--write"]
    try:
        done = await anyio.run_process(command, check=False, env=environment(state))
    finally:
        tmp_path.chmod(0o700)
    assert done.returncode == 125 and "nothing was changed" in done.stderr.decode(), done
    assert config.read_text() == before and not list(tmp_path.glob("*.before-isolator"))
    # With a file that can be written, only what is needed changes.
    code, said, notes = await tune(tmp_path, "--audit", log, "--write", config=config)
    assert code == 0 and "has these sizes now" in notes, (said, notes)
    assert json.loads(config.read_text())["languageSettings"]["python"]["pool"] == {"size": 1}
    code, said, notes = await tune(tmp_path, "--audit", log, "--write", config=config)
    assert code == 0 and "has these sizes already" in notes, (said, notes)
