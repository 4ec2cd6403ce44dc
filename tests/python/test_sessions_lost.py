"""Lost sessions: how they are reported and run again, and that nothing of them is left."""

import os
import signal

import anyio
import engine
import pytest
from by_hand import by_hand, request
from faults import collect
from server import configuration, instances
from session_calls import Tools, open_session, sandbox_of, serving

POOL = {"size": 0, "hot": 0}


@pytest.fixture
async def tools(server):
    return await Tools.of(server.client)


async def replayed(tools, handle, language="python", **arguments):
    session = await open_session(tools, language, replay=handle, **arguments)
    return session, session.opened["replayed"]


async def test_the_cells_of_a_lost_session_are_run_again(tools):
    session = await open_session(tools, files=[{"filename": "given.txt", "content": "given"}])
    part = {"filename": "parts.txt", "content": "part+", "append": True}
    await session.cell("x = [open('given.txt').read()]", additional_files=[part])
    await session.cell("x.append(open('parts.txt').read())", additional_files=[part])
    await session.command("mkdir d && echo from a command > d/a.txt")
    await session.command("cat > b.txt; echo $A >> b.txt", cwd="d", stdin="typed\n", env={"A": "variable"})
    await session.cell("x.append('rewound')")
    await session.rewind(1)
    await session.cell("x.append('undone')\nimport os; os._exit(1)", "error")
    await session.cell("raise ValueError('again')", "error")
    value = await session.value("x")
    assert value == "['given', 'part+part+']"
    assert await session.close()
    gone = await tools.is_gone(session.id, "it was closed")
    ran = [step["cell"] for step in gone["journal"] if step["state"] == "ran"]
    assert ran == [0, 1, 2, 3, 4, 7, 8], gone["journal"]

    other, told = await replayed(tools, session.id)
    assert other.id != session.id and (told["steps"], told["forgotten"]) == (7, 0)
    (failed,) = told["failed"]
    assert failed == 'cell 7: error: "ValueError: again"'
    assert await other.value("x") == value
    assert (await other.command("cat d/a.txt d/b.txt"))["stdout"] == "from a command\ntyped\nvariable\n"
    # Also of a session that is open, and of one that was replayed itself.
    third, told = await replayed(tools, other.id)
    assert await third.value("x") == value and await other.value("x") == value
    assert await other.close() and await third.close()
    fourth, _ = await replayed(tools, third.id)
    assert await fourth.value("x") == value
    assert await fourth.close()
    await tools.refuses("open_session", "replay", "language is python", language="javascript", replay=session.id)


@pytest.mark.any_engine
async def test_programs_are_run_again_with_what_they_were_given(tools):
    code = (
        'package main\nimport ("fmt"; "io"; "os")\nfunc main() {\n  in, _ := io.ReadAll(os.Stdin)\n'
        '  f, _ := os.OpenFile("log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)\n'
        '  fmt.Fprintln(f, os.Args[1:], os.Getenv("A"), string(in))\n}\n'
    )
    session = await open_session(tools, "go")
    await session.cell(code, args=["1", "2"], stdin="in", env={"A": "b"}, timeout="60s")
    log = (await session.command("cat log"))["stdout"]
    assert log == "[1 2] b in\n"
    await session.close()
    other, told = await replayed(tools, session.id, "go")
    assert (told["steps"], told["failed"]) == (2, [])
    assert (await other.command("cat log"))["stdout"] == log
    await other.close()


@pytest.mark.any_engine
async def test_javascript_is_run_again(tools):
    session = await open_session(tools, "javascript")
    await session.cell("const x: number = 1;", entrypoint_filename="a.ts")
    await session.cell("var y = await Promise.resolve(x + 1)")
    await session.close()
    other, told = await replayed(tools, session.id, "javascript")
    assert told["failed"] == [] and await other.value("[x, y]") == "[ 1, 2 ]"
    await other.close()


@pytest.mark.any_engine
async def test_a_journal_has_a_bound_and_says_what_it_forgot(tmp_path):
    config = configuration(tmp_path, pool=POOL, sessions={"journalKB": 4})
    async with serving(tmp_path, config) as (_, tools):
        session = await open_session(tools)
        for number in range(30):
            await session.cell(f"x{number} = {number}  # {'comment ' * 20}")
        # What is longer than all of it leaves nothing.
        await session.close()
        gone = await tools.is_gone(session.id, "it was closed")
        kept = [step["cell"] for step in gone["journal"]]
        assert 5 < len(kept) < 30 and kept == list(range(31 - len(kept), 31))
        assert gone["forgotten_cells"] == 30 - len(kept)
        other, told = await replayed(tools, session.id)
        assert (told["steps"], told["failed"], told["forgotten"]) == (len(kept), [], 30 - len(kept))
        assert await other.value("x29") == "29"
        assert "NameError" in (await other.cell("x0", "error"))["stderr"]
        long = "x" * 10_000
        await other.cell(f"'{long}'")
        await other.close()
        gone = await tools.is_gone(other.id, "it was closed")
        assert gone["journal"] == []


@pytest.mark.any_engine
async def test_files_of_undone_cells_are_left_out_and_large_ones_are_noted(tmp_path):
    config = configuration(tmp_path, pool=POOL, sessions={"journalKB": 4})

    def file(name, size):
        return [{"filename": name, "content": "x" * size}]

    async with serving(tmp_path, config) as (_, tools):
        session = await open_session(tools)
        await session.cell("while True: pass", "timeout", timeout="1s", additional_files=file("small", 3))
        await session.cell("import os; names = os.listdir()", additional_files=file("kept", 3))
        await session.cell("large = open('huge').read()", additional_files=file("huge", 9000))
        for lost, steps in [([3], 2), ([2], 3)]:
            await session.close()
            gone = await tools.is_gone(session.id, "it was closed")
            assert [step["cell"] for step in gone["journal"] if step.get("lost_files")] == lost, gone
            session, told = await replayed(tools, session.id)
            assert told["steps"] == steps and await session.value("names") == "['kept']"
            assert [step.partition(":")[0] for step in told["failed"]] == [f"cell {cell}" for cell in lost], told
        await session.close()


@pytest.mark.any_engine
async def test_steps_that_took_too_long_are_not_run_again(tmp_path):
    config = configuration(tmp_path, pool=POOL, results={"detachAfter": "2s"})
    async with serving(tmp_path, config) as (_, tools):
        session = await open_session(tools)
        for code in ("x = 1", "import time; time.sleep(1.2)", "time.sleep(1.2)", "x = 2"):
            await session.cell(code)
        await session.close()
        other, told = await replayed(tools, session.id)
        assert (told["steps"], told["not_run"]) == (3, 1), told
        (failure,) = told["failed"]
        assert failure.startswith("cell 3: timeout after "), failure
        assert await other.value("x") == "1"


@pytest.mark.any_engine
async def test_a_long_journal_is_cut_for_the_model_and_whole_in_the_data(tools):
    session = await open_session(tools)
    for number in range(20):
        await session.cell(f"x = {number}\n{'#' * 1000}")
    await session.close()
    result = await tools.call("execute_code", {"session": session.id, "entrypoint_code": "x"})
    text = result.content[0].text
    assert len(text) < 10_000 and "[...]" in text and "\n[20]\nx = 19" in text and "\n[1]\n" not in text
    assert len(result.structured_content["journal"]) == 20


@pytest.mark.parametrize("fault", engine.RUNNING_FAULTS)
async def test_a_sandbox_lost_while_idle_is_reported(tmp_path, fault):
    async with serving(tmp_path, configuration(tmp_path, pool=POOL)) as (server, tools):
        for waits in (True, False):
            session = await open_session(tools)
            await session.cell("x = 1")
            sandbox = await sandbox_of(server, session)
            if waits:
                await session.is_frozen()
            await anyio.to_thread.run_sync(engine.harm, sandbox, fault)
            if fault == "paused":
                # It is frozen in either case, and the next call thaws it or says that it is gone.
                await anyio.sleep(1.5)
                data = (await session.answer("x")).structured_content
                assert data.get("result") == "1" or data["status"] == "session_gone", data
                await session.close()
            else:
                with anyio.fail_after(30):
                    while (await session.answer("x")).structured_content["status"] != "session_gone":
                        await anyio.sleep(0.1)
                gone = await tools.is_gone(session.id, "its sandbox was lost")
                assert gone["journal"][0]["code"] == "x = 1"
                other, _ = await replayed(tools, session.id)
                assert await other.value("x") == "1"
                await other.close()
            with anyio.fail_after(20):
                while await tools.listed() or sandbox.id in server.sandboxes():
                    await anyio.sleep(0.1)


@pytest.mark.parametrize("fault", [fault for fault in engine.RUNNING_FAULTS if fault != "paused"])
async def test_a_sandbox_lost_during_a_cell_is_reported(tmp_path, fault):
    async with serving(tmp_path, configuration(tmp_path, pool=POOL)) as (server, tools):
        session = await open_session(tools)
        sandbox = await sandbox_of(server, session)
        async with session.running("x = 1\nimport time; time.sleep(50)") as answers:
            await anyio.sleep(0.1)
            await anyio.to_thread.run_sync(engine.harm, sandbox, fault)
        data = answers[0].structured_content
        assert data["status"] == "session_gone" and data["reason"], answers
        gone = await tools.is_gone(session.id, data["reason"])
        assert gone["journal"][-1]["code"].startswith("x = 1") and gone["journal"][-1]["state"] == "session_ended"
        assert await tools.listed() == {}


async def test_sessions_end_with_the_server(tmp_path):
    # What is left behind is looked for when it has ended.
    async with serving(tmp_path, configuration(tmp_path, pool=POOL)) as (server, tools):
        frozen, busy = await open_session(tools), await open_session(tools)
        await open_session(tools, "javascript")
        await frozen.command("sleep 1000 &")
        await frozen.is_frozen()
        await busy.cell("import subprocess; subprocess.Popen(['sleep', '1000'])")
        assert len(server.sandboxes()) >= 3


@pytest.mark.any_engine
async def test_a_stopping_server_finishes_cells_and_opens_no_sessions(tmp_path):
    with (tmp_path / "log").open("w") as log:
        async with by_hand(tmp_path, configuration(tmp_path, pool=POOL), log) as server:
            await server.begin()
            (instance,) = instances(tmp_path)

            async def send(number, tool, **arguments):
                await server.send(request(number, "tools/call", {"name": tool, "arguments": arguments}))

            await send(1, "open_session", language="python")
            session = (await server.answer(1, 60))["result"]["structuredContent"]["session"]
            await send(2, "open_session", language="python")
            await server.answer(2, 60)
            await send(3, "execute_code", session=session, entrypoint_code="import time; time.sleep(2); 'done'")
            await anyio.sleep(0.5)
            await server.end()
            assert (await server.answer(3, 30))["result"]["structuredContent"]["result"] == "'done'"
            with anyio.fail_after(20):
                assert await server.process.wait() == 0
        assert engine.left(instance, tmp_path) == []


async def test_leftover_sessions_of_a_dead_server_are_collected(tmp_path):
    with (tmp_path / "log").open("w") as log:
        async with by_hand(tmp_path, configuration(tmp_path, pool=POOL), log) as server:
            await server.begin()
            (instance,) = instances(tmp_path)

            async def call(number, tool, **arguments):
                await server.send(request(number, "tools/call", {"name": tool, "arguments": arguments}))
                return (await server.answer(number, 60))["result"]["structuredContent"]

            busy = (await call(1, "open_session", language="python"))["session"]
            await call(2, "open_session", language="python")
            # One is frozen by then, and one works.
            await anyio.sleep(1.5)
            await call(3, "run_command", session=busy, command="while :; do :; done & echo")
            os.kill(server.pid, signal.SIGKILL)
            await server.process.wait()
    await anyio.to_thread.run_sync(collect, tmp_path)
    assert engine.left(instance, tmp_path) == []
    async with serving(tmp_path, configuration(tmp_path, pool=POOL)) as (_, tools):
        await tools.refuses("run_command", "session", "the server was restarted", session=busy, command="true")
