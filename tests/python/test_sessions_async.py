"""The event loop of a Python session, in a sandbox: between cells, during commands, frozen, undone."""

import time

import pytest
from session_calls import Tools, opened

SERVER = """
import asyncio
async def answer(reader, writer):
    await reader.readline()
    writer.write(b"HTTP/1.0 200 OK\\r\\n\\r\\nfrom the cell")
    writer.close()
server = await asyncio.start_server(answer, "127.0.0.1", 8000)
"""
ASK = """python3 -c 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:8000").read().decode())'"""
BUSY = "x = 2\nimport asyncio, time\nasync def busy():\n    await asyncio.sleep(0)\n    await asyncio.sleep(0.2)\n    open('/tmp/busy', 'w').close()\n    {0}\nt = asyncio.create_task(busy())"
IS_BUSY = "until [ -e /tmp/busy ]; do sleep 0.05; done; rm /tmp/busy"


@pytest.fixture
async def tools(server):
    return await Tools.of(server.client)


async def test_a_server_of_a_cell_serves_commands_and_goes_on_after_it_was_frozen(tools):
    async with opened(tools) as session:
        await session.cell(SERVER)
        assert (await session.command(ASK))["stdout"] == "from the cell\n"
        await session.is_frozen()
        assert (await session.command(ASK))["stdout"] == "from the cell\n"
        data = await session.cell("server.close()\nwhile True: pass", "timeout", timeout="1s")
        assert data["undone"], data
        assert (await session.command(ASK))["stdout"] == "from the cell\n"


async def test_tasks_print_between_cells_and_after_an_undo(tools):
    async with opened(tools) as session:
        await session.cell("import asyncio\nasync def late(after):\n    await asyncio.sleep(after)\n    print('late')\nt = asyncio.create_task(late(0.1))")
        assert (await session.command("sleep 0.4"))["background_output"] == "late\n"
        # Longer than the next cell may take to come.
        await session.cell("t = asyncio.create_task(late(1.5))")
        await session.cell("1")
        assert (await session.rewind(1))["undone_cells"] == 1
        assert (await session.command("sleep 2"))["background_output"] == "late\n"


async def test_only_a_cell_interrupts_a_busy_task_of_a_session_without_a_checkpoint(tools):
    async with opened(tools) as session:
        await session.cell("import threading, time\nthread = threading.Thread(target=time.sleep, args=[300], daemon=True)\nthread.start()")
        await session.cell(BUSY.format("time.sleep(60)"))
        await session.command(IS_BUSY)
        began = time.monotonic()
        for _ in range(2):
            assert (await session.command("echo it"))["stdout"] == "it\n"
        # Nothing waits for the task before a cell comes.
        assert time.monotonic() - began < 5
        data = await session.cell("x, thread.is_alive(), t.done()")
        assert data["result"] == "(2, True, True)" and not data.get("undone"), data
        assert "A task that kept the next cell from beginning was interrupted." in data["background_output"], data


async def test_a_task_that_keeps_the_next_cell_from_beginning_is_interrupted_or_undone(tools):
    async with opened(tools) as session:
        await session.cell("x = 1")
        await session.cell(BUSY.format("time.sleep(60)"))
        await session.command(IS_BUSY)
        began = time.monotonic()
        data = await session.cell("x")
        assert data["result"] == "2" and time.monotonic() - began < 10
        assert "A task that kept the next cell from beginning was interrupted." in data["background_output"], data
        code = "\n    while True:\n        try:\n            while True: pass\n        except KeyboardInterrupt: pass\n"
        await session.cell(BUSY.format(code).replace("x = 2", "x = 3"))
        await session.command(IS_BUSY)
        # The cell begins in the checkpoint that was made for it, before the task became busy. If that is busy, too, when the cell comes, the
        # cell that has left the task is undone.
        data = (await session.answer("x")).structured_content
        if data["status"] == "success":
            assert data["result"] == "3"
        else:
            assert data.get("undone") and "the cell did not run" in data["message"], data
            assert await session.value("x") == "2"
