"""The bounds of sessions: time, number, memory, the cost of idle ones, and their owners."""

import time

import anyio
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from processes import cpu_seconds
from server import configuration, listening
from session_calls import NO_CPU_S, Tools, at_once, cpu_of, open_session, opened, process_of, sandbox_of, serving
from test_http import tokens

POOL = {"size": 0, "hot": 0}

COUNTS = """
import threading
n = 0
def count():
    global n
    while True: n += 1
threading.Thread(target=count, daemon=True).start()
"""


async def test_nothing_in_an_idle_session_uses_time(server):
    tools = await Tools.of(server.client)
    async with opened(tools) as session:
        sandbox, pid = await sandbox_of(server, session), await process_of(session)
        await session.cell(COUNTS)
        await session.command("while :; do :; done & echo begun")
        await session.is_frozen()
        spent, busy = cpu_of(sandbox), cpu_seconds(pid)
        await anyio.sleep(1.5)
        assert cpu_of(sandbox) - spent < NO_CPU_S and cpu_seconds(pid) == busy
        # Looking at the list does not wake it.
        assert (await session.state())["frozen"]
        before = int(await session.value("n"))
        answer = await session.answer("n")
        assert not answer.meta["isolator/receipt"]["frozen"]
        with anyio.fail_after(30):
            while int(await session.value("n")) <= before or cpu_of(sandbox) <= spent:
                await anyio.sleep(0.1)
        await session.is_frozen()
        answer = await session.answer("n")
        assert answer.meta["isolator/receipt"]["frozen"] and int(answer.structured_content["result"]) > before


@pytest.mark.alone
async def test_all_sessions_together_use_no_more_cpu_time_than_the_slots_allow(tmp_path):
    config = configuration(tmp_path, pool=POOL, requests={"maxRunning": 1})
    async with serving(tmp_path, config) as (server, tools):
        sessions = [await open_session(tools, cpus=1) for _ in range(4)]
        sandboxes = []
        for session in sessions:
            # Before all cells: a rewind undoes what was written since.
            await session.command("printf a > a")
            sandboxes.append(await sandbox_of(server, session))
            await session.cell(COUNTS)
        used, began, uses = sum(map(cpu_of, sandboxes)), time.monotonic(), [0] * 4

        # One rewinds, lists and reads without a pause, and the others have short cells, until each has done so three times.
        async def use(number):
            session = sessions[number]
            while min(uses) < 3 or time.monotonic() - began < 2:
                if number == 0:
                    await tools.call("rewind_session", {"session": session.id, "cells": 1})
                    assert "a" in await session.files() and (await session.file("a")).text == "a"
                else:
                    assert int(await session.value("n")) > 0
                    await anyio.sleep(0.3)
                uses[number] += 1

        with anyio.fail_after(60):
            await at_once(use, range(4))
        took, used = time.monotonic() - began, sum(map(cpu_of, sandboxes)) - used
        assert used < 1.15 * took + 0.2, f"{used} s of CPU time in {took} s: {uses}"


USES = {
    "a cell": lambda session: session.value("x"),
    "a command": lambda session: session.command("cat a"),
    "rewinding": lambda session: session.rewind(1),
    "a list": lambda session: session.files(),
    "a file": lambda session: session.file("a"),
    "an interruption": lambda session: session.interrupt(),
}


async def test_any_use_thaws_a_frozen_session(server):
    tools = await Tools.of(server.client)

    async def check(use):
        async with opened(tools) as session:
            await session.cell("x = 1; open('a', 'w').write('a')")
            await session.cell("x = 1")
            await session.is_frozen()
            await USES[use](session)
            assert await session.value("x") == "1", use
            await session.is_frozen()
            assert await session.close()

    await at_once(check, USES)


@pytest.mark.any_engine
async def test_an_unused_session_ends_and_says_so(tmp_path):
    async with serving(tmp_path, configuration(tmp_path, pool=POOL, sessions={"idleTimeout": "3s"})) as (server, tools):
        short = await open_session(tools, idle_timeout="1s")
        session = await open_session(tools)
        assert (short.opened["limits"]["idle_timeout"], session.opened["limits"]["idle_timeout"]) == ("1s", "3s")
        # Neither a cell that takes longer nor use ends it.
        await session.cell("x = 1\nimport time; time.sleep(3.5)")
        for _ in range(3):
            await anyio.sleep(1.1)
            assert await session.value("x") == "1"
        gone = await tools.is_gone(short.id, "it was not used for 1s")
        assert (gone["journal"], gone["language"], gone["forgotten_cells"]) == ([], "python", 0)
        with anyio.fail_after(30):
            while await tools.listed():
                await anyio.sleep(0.1)
        gone = await tools.is_gone(session.id, "it was not used for 3s")
        assert gone["journal"][0] == {"cell": 1, "code": "x = 1\nimport time; time.sleep(3.5)", "state": "ran"}
        with pytest.raises(MCPError, match="it was not used for 3s"):
            await session.files()
        assert server.sandboxes() == set()


@pytest.mark.any_engine
async def test_a_session_ends_when_it_is_old_even_if_it_is_used(tmp_path):
    async with serving(tmp_path, configuration(tmp_path, pool=POOL, sessions={"maxAge": "2s"})) as (_, tools):
        session = await open_session(tools)
        assert (await session.cell("x = 1"))["expires_at"] == session.opened["expires_at"]
        with anyio.fail_after(30):
            while (await session.answer("x")).structured_content["status"] == "success":
                await anyio.sleep(0.2)
        await tools.is_gone(session.id, "it had reached the greatest age of a session, 2s")
        # What runs at that time comes to its end.
        session = await open_session(tools)
        assert await session.value("import time; time.sleep(2.5)\n'done'") == "'done'"


@pytest.mark.any_engine
async def test_the_session_that_was_unused_longest_makes_room(tmp_path):
    async with serving(tmp_path, configuration(tmp_path, pool=POOL, sessions={"max": 2})) as (_, tools):
        first, second = await open_session(tools), await open_session(tools)
        await second.cell("x = 2")
        await first.cell("x = 1")
        third = await open_session(tools)
        (note,) = third.opened["notes"]
        assert second.id in note and "you opened another session and can have 2" in note and "replay" in note, note
        gone = await tools.is_gone(second.id, "you opened another session and can have 2")
        assert [step["code"] for step in gone["journal"]] == ["x = 2"]
        assert await first.value("x") == "1"
        assert (await tools.counts())["evicted"] == 1
        # Those that are in use stay.
        async with first.running("import time; time.sleep(1)"), third.running("import time; time.sleep(1)"):
            refused = await tools.call("open_session", {"language": "python"})
            assert refused.is_error and "all 2 sessions that can be open are in use" in refused.content[0].text
        assert set(await tools.listed()) == {first.id, third.id}


@pytest.mark.any_engine
async def test_memory_of_all_sessions_has_a_bound(tmp_path):
    async with serving(tmp_path, configuration(tmp_path, pool=POOL, sessions={"memoryMB": 185})) as (_, tools):
        first, second, third = [await open_session(tools) for _ in range(3)]
        # Two of them have room, with three kernels, and three have none.
        heap = "heap = bytearray(b'x') * (60 << 20)"
        await second.cell(heap)
        await first.cell(heap)
        await third.cell(heap)
        await tools.is_gone(second.id, "took more than 185 MiB together", "was unused longest")
        assert set(await tools.listed()) == {first.id, third.id}
        # A session that takes more than all may is ended, too, once it is not in use.
        await third.cell("more = bytearray(b'x') * (130 << 20)")
        await open_session(tools)
        await tools.is_gone(third.id, "took more than 185 MiB together")


async def refused_or_gone(place, session):
    """Another client gets the same answers for a session as for one that never was."""
    for tool, arguments in [
        ("execute_code", {"entrypoint_code": "x"}),
        ("run_command", {"command": "cat secret"}),
        ("rewind_session", {"cells": 1}),
        ("interrupt_session", {}),
        ("close_session", {}),
    ]:
        message = await place.refuses(tool, "session", session=session.id, **arguments)
        other = await place.refuses(tool, "session", session="0" * 32, **arguments)
        assert message.replace(session.id, "") == other.replace("0" * 32, "")
    await place.refuses("open_session", "replay", "it was never yours", language="python", replay=session.id)
    for path in ("files", "files/secret"):
        with pytest.raises(MCPError, match="there is no such session"):
            await place.read(f"isolator://sessions/{session.id}/{path}")


@pytest.mark.any_engine
async def test_a_session_belongs_to_the_client_that_opened_it(tmp_path):
    lines, secrets = tokens("one", "two")
    (tmp_path / "tokens").write_text("".join(lines))
    config = configuration(
        tmp_path, pool=POOL, sessions={"max": 3, "maxPerClient": 2}, http={"tokens": str(tmp_path / "tokens")}
    )

    def client(url, secret):
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=60)
        return Client(streamable_http_client(url, http_client=http), read_timeout_seconds=60)

    async with listening(tmp_path, config) as url:
        async with client(url, secrets[0]) as one, client(url, secrets[1]) as two, client(url, secrets[0]) as again:
            one, two, again = await Tools.of(one), await Tools.of(two), await Tools.of(again)
            session = await open_session(one)
            await session.cell("x = 1; open('secret', 'w').write('secret')")
            await refused_or_gone(two, session)
            assert await two.listed() == {} and set(await again.listed()) == {session.id}
            # The same token is the same client, over any connection.
            answer = await again.call("execute_code", {"session": session.id, "entrypoint_code": "x"})
            assert answer.structured_content["result"] == "1"
            # A client takes room from itself first, and from the one who has most.
            second = await open_session(one)
            third = await open_session(one)
            await one.is_gone(session.id, "you opened another session and can have 2")
            await refused_or_gone(two, session)
            await open_session(two)
            await open_session(two)
            assert len(await two.listed()) == 2 and set(await one.listed()) == {third.id}
            await one.is_gone(second.id, "this server can have 3 sessions")


@pytest.mark.any_engine
async def test_hundreds_of_sessions_are_opened_and_few_are_there(tmp_path):
    async with serving(tmp_path, configuration(tmp_path, pool=POOL, sessions={"max": 4})) as (server, tools):
        statuses = []

        async def open_some(count):
            for _ in range(count):
                statuses.append((await tools.call("open_session", {"language": "python"})).is_error)

        async with anyio.create_task_group() as calls:
            for _ in range(3):
                calls.start_soon(open_some, 35)
        assert statuses.count(False) >= 100, statuses
        assert len(await tools.listed()) <= 4
        with anyio.fail_after(60):
            while len(server.sandboxes()) > 4:
                await anyio.sleep(0.1)
        counts = await tools.counts()
        assert counts["opened"] == statuses.count(False) and counts["evicted"] == counts["opened"] - counts["open"]
