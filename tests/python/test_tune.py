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


@pytest.mark.alone
@pytest.mark.release
async def test_the_advice_for_an_agent_keeps_the_warm_share_that_it_promises(tmp_path):
    settings = {"pool": {"size": 1, "hot": 1}, "audit": {"path": "audit.jsonl"}}
    log, chart = tmp_path / "audit.jsonl", tmp_path / "chart.svg"
    async with operated(tmp_path, **settings) as (url, admin, _):
        await is_full(admin)
        place = admin.removeprefix("http://")
        config = configuration(tmp_path, **settings)
        before = await fan_out(url, admin, 4)
        # So few are a guess, which is shown and not written.
        unchanged = config.read_text()
        code, said, notes = await tune(tmp_path, place, "--write", config=config)
        assert code == 0 and f"only {4 * AT_ONCE} calls were seen, so this is little more than a guess" in said, said
        assert "python is left as it is, because this is a guess" in notes and config.read_text() == unchanged, notes
        before = warm(before + await fan_out(url, admin, 13))
        code, said, notes = await tune(tmp_path, place, "--json", config=config)
        assert code == 0, notes
        (seen,) = json.loads(said)["pools"]
    # The log has what the server has counted, and there is no server to ask.
    code, said, notes = await tune(tmp_path, "--audit", log, "--svg", chart, config=config)
    assert code == 0, notes
    sentence = r"^python: \d.* in the busiest minute, a sandbox takes \d+ ms: (\d+) keeps? .*% of calls warm and takes? \d+ MiB \(now 1: .*\)$"
    size = int(re.search(sentence, said, re.MULTILINE)[1])
    code, said, notes = await tune(tmp_path, "--audit", log, "--json", "--write", config=config)
    assert code == 0, notes
    (logged,) = json.loads(said)["pools"]
    assert (logged["language"], logged["calls"], logged["size"]) == ("python", 17 * AT_ONCE, size)
    # Calls at the end of a minute may be of the next one in one of them.
    assert abs(seen["busiest_minute"] - logged["busiest_minute"]) <= AT_ONCE, (seen, logged)
    for same in ("calls", "size", "warm_now", "warm", "is_guess"):
        assert seen[same] == logged[same], (same, seen, logged)
    assert abs(seen["lead_ms"] - logged["lead_ms"]) < seen["lead_ms"], (seen, logged)
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


@pytest.mark.alone
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


@pytest.mark.alone
async def test_the_advice_is_in_effect_after_a_reload(tmp_path):
    settings = {"pool": {"size": {"min": 1, "max": 8}}, "admin": {"address": ANY_PORT}}
    async with operated(tmp_path, **settings) as (url, admin, _):
        await is_full(admin)
        for number in range(100 - AT_ONCE):
            await run(url, number, "print(1)")
        await fan_out(url, admin, 2)
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


def line(language, start="hot", depth=0):
    bytes_ = {"code": 1, "files": 0, "stdout": 0, "stderr": 0, "returned": 0}
    call = {"time": "2026-03-01T12:00:00.000Z", "client": "c", "tool": "execute_code", "language": language, "start": start}
    call |= {"pool": {"depths": [depth], "making_ms": 90.0}} if depth is not None else {}
    return json.dumps(call | {"status": "success", "ms": 4.0, "bytes": bytes_}) + "\n"


async def test_a_log_is_read_without_a_server_and_gaps_are_noted(tmp_path):
    log = tmp_path / "audit.jsonl"
    old = line("python", depth=None)
    log.write_text(line("python") * 200 + line("python", depth=101) * 100 + old * 2 + line("cobol") + "rubbish\n" + old[:50])
    config, chart = configuration(tmp_path), tmp_path / "chart.svg"
    arguments = ["--audit", log, "--json", "--svg", chart]
    code, said, notes = await tune(tmp_path, f"127.0.0.1:{free_port()}", *arguments, config=config)
    assert code == 0, notes
    report = json.loads(said)
    (pool,) = report["pools"]
    assert (pool["calls"], pool["size"], pool["lead_ms"], pool["is_measured"]) == (300, 102, 90.0, False), pool
    notes = "\n".join(report["notes"] + pool["notes"])
    for told in ("ends in the middle of a line", "1 line(s) of", "2 call(s) are left out: they are of an older version",
                 "1 call(s) of cobol are left out", "the server does not tell the memory", "the memory is an estimate"):
        assert told in notes, (told, notes)
    # The mark of the advice is on the line, however large it is.
    drawn = ElementTree.parse(chart)
    large = max(drawn.iter("{http://www.w3.org/2000/svg}circle"), key=lambda circle: float(circle.get("r")) * (circle.get("fill") != "none"))
    line_ = max((found.get("points") for found in drawn.iter("{http://www.w3.org/2000/svg}polyline")), key=len)
    assert f"{large.get('cx')},{large.get('cy')} " in line_, (large.attrib, line_)


async def test_impossible_advice_is_explained(tmp_path):
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
    log.write_text(line("python", depth=None) * 300)
    assert "its 300 call(s) do not tell what they found of their pools" in await refused("--audit", log)
    log.write_text(line("python", start=None))
    assert "no calls were seen yet" in await refused("--audit", log)
    async with operated(tmp_path, languages={"python": {"image": NO_IMAGE}}) as (_, admin, _):
        assert "no calls were seen yet" in await refused(admin.removeprefix("http://"))


async def test_an_unwritable_configuration_is_left_alone(tmp_path):
    config = configuration(tmp_path, languages={"python": {"enabled": True, "pool": {"size": 9}}})
    before = config.read_text()
    log = tmp_path / "audit.jsonl"
    log.write_text(line("python") * 100)
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
