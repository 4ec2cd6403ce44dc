"""Sessions whose cells fail badly, are interrupted, cancelled, or rewound."""

import json
import time

import anyio
import pytest
from by_hand import CLIENT, MODERN, by_hand, cancel, request
from server import KINDS, configuration, listening
from session_calls import Tools, open_session, opened, serving
from test_http import Connection, place

# Cells that fail badly: their arguments, status and message.
BAD = {
    "timeout": ("x = 2\nwhile True: pass", {"timeout": "1s"}, "timeout", "still running after 1s"),
    "memory": ("x = 2\nheap = []\nwhile True: heap.append(bytearray(1 << 22))", {}, "out_of_memory", "memory"),
    "exit": ("x = 2\nimport os; os._exit(3)", {}, "error", "exit code 3"),
    "crash": ("x = 2\nimport ctypes; ctypes.string_at(0)", {}, "error", "SIGSEGV"),
    "kill": ("x = 2\nimport os, signal; os.kill(os.getpid(), signal.SIGKILL)", {}, "error", "SIGKILL"),
    "output": ("x = 2\nwhile True: print('y' * 100_000)", {"timeout": "40s"}, "output_limit", "it printed more than"),
}
UNDONE = "the cell was undone: variables and the files of the working directory are as before it"
THREAD = "import threading, time\nthread = threading.Thread(target=time.sleep, args=(1000,), daemon=True)\nthread.start()"

# In JavaScript.
FOREVER = "await new Promise((end) => setTimeout(end, 100_000))"

POOL = {"size": 0, "hot": 0}


@pytest.fixture
async def tools(server):
    return await Tools.of(server.client)


@pytest.mark.parametrize("how", BAD)
async def test_a_cell_that_fails_badly_costs_only_itself(tools, how):
    code, arguments, status, said = BAD[how]
    async with opened(tools, memory_mb=128) as session:
        await session.cell("x = 1")
        await session.cell("open('kept', 'w').write('kept'); import os")
        change = "open('kept', 'a').write('changed'); open('new', 'w').close()"
        data = await session.cell(f"{change}\n{code}", status, **arguments)
        assert data["undone"] and said in data["message"] and UNDONE in data["message"], data
        assert data["cell"] == 3 and "expires_at" in data and "notes" not in data and "files" not in data
        assert await session.value("x, open('kept').read(), os.path.exists('new')") == "(1, 'kept', False)"
        # And it can be rewound as if the cell had not been.
        assert (await session.rewind(1))["undone_cells"] == 1


async def test_files_are_rewound_with_their_cells(tools):
    async with opened(tools, files=[{"filename": "sent", "content": "sent"}]) as session:
        await session.cell("import os\nopen('a', 'w').write('1'); os.mkdir('folder'); os.symlink('a', 'link')")
        await session.cell(
            "open('a', 'w').write('2'); open('folder/b', 'w').close(); os.remove('link')",
            additional_files=[{"filename": "with", "content": "x"}],
        )
        await session.command("echo 3 > a; mkdir made; rm sent")
        await session.cell("open('large', 'w').truncate(1 << 30)")
        await session.cell("open('large', 'r+').write('changed')")
        data = await session.rewind(1)
        assert data["undone_cells"] == 1 and "large" in data["notes"][0], data
        assert "notes" not in await session.rewind(1)
        assert await session.value("sorted(os.listdir()), open('a').read()") == "(['a', 'folder', 'made', 'with'], '3\\n')"
        assert "notes" not in await session.rewind(2)
        listed = "sorted(os.listdir()), os.listdir('folder'), open('link').read(), open('sent').read()"
        assert await session.value(listed) == "(['a', 'folder', 'link', 'sent'], [], '1', 'sent')"
        # The next answer does not take them for changed ones.
        assert "files" not in await session.cell("1")


async def test_a_cell_that_leaves_no_room_for_the_next_one_is_undone_with_it(tools):
    async with opened(tools) as session:
        await session.cell("x = 1")
        await session.cell("import os\nx = 2\ntry:\n    while True: os.open('/dev/null', 0)\nexcept OSError: pass")
        data = await session.cell("x", "error")
        assert data["undone"] and "the cell did not run" in data["message"] and "open files" in data["message"], data
        assert await session.value("x") == "1"


@pytest.mark.parametrize("how", ["memory", "exit", "crash"])
async def test_without_a_checkpoint_more_cells_are_undone(tools, how):
    code, arguments, status, _ = BAD[how]
    async with opened(tools, memory_mb=128) as session:
        await session.cell("x = 1")
        await session.cell(f"x = 3\n{THREAD}")
        data = await session.cell("x = 4")
        assert data["notes"] == ["there is no checkpoint before this cell, because threads are running"]
        data = await session.cell(code, status, **arguments)
        assert data["undone"] and "the last 3 cells were undone" in data["message"], data
        assert await session.value("x") == "1"


async def test_without_a_checkpoint_interrupted_cells_keep_their_state(tools):
    async with opened(tools) as session:
        await session.cell(THREAD)
        for code, arguments, status, _ in [BAD["timeout"], BAD["output"]]:
            data = await session.cell(code, status, **arguments)
            assert "undone" not in data and "what it did until then stays" in data["message"], data
            assert await session.value("x") == "2"
            await session.cell("x = 1")
        # What can't be is undone with the cells before it, to the last checkpoint.
        await session.cell("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
        data = await session.cell("while True: pass", "timeout", timeout="1s")
        assert data["undone"] and "cells were undone" in data["message"], data
        assert "NameError" in (await session.cell("x", "error"))["stderr"]


@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_where_there_are_no_checkpoints_the_session_ends_and_says_so(tmp_path, language):
    config = configuration(tmp_path, sessions={"checkpoints": 0}, pool=POOL)
    loops, waits, exits, counts = {
        "python": ("while True: pass", "import time; time.sleep(100)", "import os; os._exit(3)", "x = 1"),
        "javascript": ("while (true);", FOREVER, "process.reallyExit(3)", "let x = 1"),
    }[language]
    async with serving(tmp_path, config) as (_, tools), opened(tools, language) as session:
        data = await session.cell(counts)
        assert "notes" not in data
        for code in (loops, waits):
            data = await session.cell(code, "timeout", timeout="1s")
            assert "undone" not in data and "interrupted" in data["message"], data
            assert await session.value("x") == "1"
        await tools.refuses("rewind_session", "cells", session=session.id, cells=1)
        data = await session.cell(exits, "error")
        assert data["exit_code"] == 3 and "the session has ended with it" in data["message"], data
        assert "replay" in data["message"] and "undone" not in data and "expires_at" not in data
        gone = await tools.is_gone(session.id, "its program has ended it: a cell ended its interpreter")
        assert [step["code"] for step in gone["journal"]] == [counts, loops, "x", waits, "x", exits]
        assert [step["state"] for step in gone["journal"]] == ["ran", "timed_out"] * 2 + ["ran", "session_ended"]
        # What ran too long would do so again, and the last one would be the end of every session that comes after.
        async with opened(tools, language, replay=session.id) as again:
            told = again.opened["replayed"]
            assert told["steps"] == 3, told
            reason = "not run again, because it was still running after 1s"
            assert told["failed"] == [f"cell {number}: {reason}" for number in (2, 4)]
            assert await again.value("x") == "1"


BLOCKED = {
    "a shell": "execSync('sleep 60')",
    "a shell and what it leaves": "execSync('sleep 60 & setsid sleep 60 & wait')",
    "a program": "try { execFileSync('sleep', ['60']) } finally { console.log('no') }",
    "one of several": "while (true) spawnSync('sh', ['-c', 'trap true INT TERM; sleep 60; sleep 60'])",
    "a thread": "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
}


async def test_a_cell_in_javascript_that_waits_for_a_child_ends_with_that_child(tools):
    async with opened(tools, "javascript") as session:
        await session.cell("const { execSync, execFileSync, spawnSync, spawn } = require('child_process'); let x = 1")
        await session.cell("const server = spawn('sleep', ['1000'])")
        for code in BLOCKED.values():
            data = await session.cell(f"x += 1; {code}", "timeout", timeout="1s")
            assert "interrupted" in data["message"] and "expires_at" in data and data["stdout"] == "", data
        async with anyio.create_task_group() as group:

            async def interrupt():
                await anyio.sleep(0.5)
                await tools.call("interrupt_session", {"session": session.id})

            group.start_soon(interrupt)
            began = time.monotonic()
            data = await session.cell("execSync('sleep 60')", "error")
            assert "interrupted" in data["message"] and time.monotonic() - began < 10, data
        # Only what was in the way has ended.
        await session.cell("const isAsleep = (pid) => { try { return / .sleep. [^Z]/.test(readFileSync(`/proc/${pid}/stat`)) } catch {} }")
        await session.cell("const { readdirSync, readFileSync } = require('fs')")
        left = "readdirSync('/proc').filter(isAsleep).length"
        assert await session.value(f"[x, server.exitCode, server.signalCode, {left}]") == f"[ {1 + len(BLOCKED)}, null, null, 1 ]"


async def test_a_session_that_has_lacked_memory_says_so_when_it_is_gone(tools):
    session = await open_session(tools, "javascript", memory_mb=128)
    await session.cell("let kept = 1")
    result = await session.answer("const all = []; for (;;) all.push(new Array(1e5).fill({}))")
    assert "the session has ended with it" in result.structured_content["message"], result.content
    assert "open another session with more memory_mb" in result.structured_content["message"], result.content
    gone = await tools.is_gone(session.id, "its program has ended it: a cell needed more memory than it can have")
    assert [step["state"] for step in gone["journal"]] == ["ran", "session_ended"]


async def test_a_session_is_rewound_as_far_as_there_are_checkpoints(tools):
    async with opened(tools) as session:
        await tools.refuses("rewind_session", "cells", "no cell can be rewound", session=session.id, cells=1)
        await session.cell("x = []")
        for number in range(12):
            await session.cell(f"x.append({number})")
        await session.command("echo a file > made")
        assert await session.rewind(3) | {"expires_at": 0} == {"undone_cells": 3, "can_rewind": 5, "expires_at": 0}
        assert await session.value("x") == str(list(range(9)))
        assert (await session.rewind(1))["can_rewind"] == 5
        await tools.refuses("rewind_session", "cells", "no checkpoint 6 cells back; the oldest one is 5 back", session=session.id, cells=6)
        # What a command has done since goes, too.
        assert await session.value("x, __import__('os').listdir()") == f"({list(range(9))}, [])"
        assert (await session.rewind(6))["undone_cells"] == 6
        assert await session.value("x") == str(list(range(4)))
        # Cells that raise can be rewound, too.
        await session.cell("x.append('new'); raise ValueError", "error")
        await session.rewind(1)
        assert await session.value("x") == str(list(range(4)))


async def test_rewinding_ends_the_processes_of_the_rewound_cells_only(tools):
    async with opened(tools) as session:
        await session.cell("x = 1")
        await session.command("sleep 1000 & echo $! > before")
        await session.cell("import os, subprocess, time\ntime.sleep(0.05)\nafter = subprocess.Popen(['sleep', '1000']).pid")
        after = await session.value("after")
        await session.rewind(2)
        alive = "kill -0 {} 2>/dev/null && echo alive || echo gone"
        assert (await session.command(alive.format("$(cat before)")))["stdout"] == "alive\n"
        assert (await session.command(alive.format(after)))["stdout"] == "gone\n"
        assert await session.value("x") == "1"


async def test_background_processes_survive_the_undo_of_a_cell(tools):
    for code, status, arguments in [("while True: pass", "timeout", {"timeout": "1s"}), ("import os; os._exit(3)", "error", {})]:
        async with opened(tools) as session:
            await session.cell("x = 1")
            await session.command("sleep 1000 & echo $! > pid")
            await anyio.sleep(0.05)
            data = await session.cell(code, status, **arguments)
            assert data["undone"]
            assert await session.value("import os; os.kill(int(open('pid').read()), 0); x") == "1"


@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_an_interrupted_cell_keeps_its_effects(tools, language):
    loops = {
        "python": ["x = 1\nwhile True: pass", "x += 1\nimport time; time.sleep(100)"],
        "javascript": ["x = 1; while (true);", f"x += 1; {FOREVER}"],
    }
    async with opened(tools, language) as session:
        assert not await session.interrupt()
        # A kernel loads what it needs before its first cell.
        assert await session.value("5") == "5"
        for number, code in enumerate(loops[language], 1):
            async with session.running(code) as answers:
                await anyio.sleep(0.1)
                assert await session.interrupt()
            data = answers[0].structured_content
            assert (data["status"], data["exit_code"]) == ("error", 130), data
            assert "it was interrupted; what it did until then stays" in data["message"] and "undone" not in data
            assert await session.value("x") == str(number)
        # It was not meant for the next cell.
        assert not await session.interrupt()
        assert await session.value("x") == "2"


async def test_a_command_is_interrupted(tools):
    for language in ("python", "go"):
        async with opened(tools, language) as session:

            async def interrupt(session=session):
                await session.is_running()
                await anyio.sleep(0.2)
                assert await session.interrupt()

            began = time.monotonic()
            async with anyio.create_task_group() as calls:
                calls.start_soon(interrupt)
                data = await session.command("echo begun; sleep 50; echo not reached", "error")
            assert data["stdout"] == "begun\n" and time.monotonic() - began < 20
            assert (await session.command("echo on"))["stdout"] == "on\n"


@pytest.mark.any_engine
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3]])
async def test_a_vanished_caller_leaves_no_trace_in_the_variables(tmp_path, kind):
    async with serving(tmp_path, configuration(tmp_path, pool=POOL), kind) as (_, tools), opened(tools) as session:
        await session.cell("x = 1")
        with anyio.move_on_after(0.7):
            await session.answer("x = 2\nimport time; time.sleep(100)")
        began = time.monotonic()
        assert await session.value("x") == "1"
        assert time.monotonic() - began < 10
        # One who waits for another's cell, and goes away, has run nothing.
        async with session.running("time = __import__('time'); time.sleep(1)"):
            with anyio.move_on_after(0.3):
                await session.answer("x = 3")
        assert await session.value("x") == "1"


@pytest.mark.any_engine
async def test_a_cell_that_is_cancelled_is_undone_and_not_answered(tmp_path):
    with (tmp_path / "log").open("w") as log:
        async with by_hand(tmp_path, configuration(tmp_path, pool=POOL), log) as server:
            await server.begin()
            asked = iter(range(1000))

            async def send(tool, **arguments):
                number = next(asked)
                await server.send(request(number, "tools/call", {"name": tool, "arguments": arguments}))
                return number

            async def call(tool, **arguments):
                answer = await server.answer(await send(tool, **arguments), 60)
                return answer["result"]["structuredContent"]

            session = (await call("open_session", language="python"))["session"]
            await call("execute_code", session=session, entrypoint_code="x = 1")
            for wait in (0, 0.5):
                number = await send("execute_code", session=session, entrypoint_code="x = 2\nimport time; time.sleep(100)")
                await anyio.sleep(wait)
                await server.send(cancel(number))
                assert (await call("execute_code", session=session, entrypoint_code="x"))["result"] == "1"
                assert not server.answers[number]
            number = await send("run_command", session=session, command="sleep 100")
            await anyio.sleep(0.3)
            await server.send(cancel(number))
            assert (await call("run_command", session=session, command="echo on"))["stdout"] == "on\n"


@pytest.mark.any_engine
async def test_a_connection_that_is_closed_undoes_its_cell(tmp_path):
    config = configuration(tmp_path, pool=POOL)
    async with listening(tmp_path, config) as url:

        async def send(connection, tool, **arguments):
            message = request(1, "tools/call", {"name": tool, "arguments": arguments, "_meta": CLIENT})
            names = {"mcp_protocol_version": MODERN, "mcp_method": "tools/call", "mcp_name": tool}
            await connection.send("POST", body=message, version="1.0", **names)

        async def call(tool, **arguments):
            host, port = place(url)
            async with await anyio.connect_tcp(host, port) as stream:
                connection = Connection(stream, host)
                await send(connection, tool, **arguments)
                answer = await connection.rest()
            return json.loads(answer.partition(b"\r\n\r\n")[2])["result"]["structuredContent"]

        session = (await call("open_session", language="python"))["session"]
        await call("execute_code", session=session, entrypoint_code="x = 1")
        host, port = place(url)
        async with await anyio.connect_tcp(host, port) as stream:
            await send(
                Connection(stream, host), "execute_code", session=session, entrypoint_code="x = 2\nimport time; time.sleep(50)"
            )
            await anyio.sleep(0.5)
        began = time.monotonic()
        assert (await call("execute_code", session=session, entrypoint_code="x"))["result"] == "1"
        assert time.monotonic() - began < 10


async def test_a_session_is_closed_while_a_cell_runs(tools):
    async with opened(tools) as session:
        async with session.running("x = 1\nimport time; time.sleep(100)") as answers:
            assert await session.close()
        data = answers[0].structured_content
        assert (data["status"], data["reason"]) == ("session_gone", "it was closed")
        await tools.is_gone(session.id, "it was closed")
