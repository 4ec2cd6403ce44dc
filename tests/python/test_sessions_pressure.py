"""Sessions whose checkpoints are under pressure: memory is short, or a process has killed or broken them."""

import pytest
from session_calls import Tools, opened
from test_sessions_undo import THREAD, UNDONE

MEMORY_MB = 128
LIMIT = MEMORY_MB << 20

# Tells whether the process is still there whose number a file has.
ALIVE = "kill -0 $(cat {}) 2>/dev/null && echo alive || echo gone"

# Kills the processes with these numbers, and waits until they have ended. A busy machine takes a moment for that.
KILL = "set -- {}; kill -9 $@; for pid; do while grep -qs 'State:.[^ZX]' /proc/$pid/status; do sleep 0.01; done; done"


@pytest.fixture
async def tools(server):
    return await Tools.of(server.client)


async def filled(session):
    """Has the session take so much that its memory is short, but does not run out. Returns the size of its `x`."""
    size = LIMIT * 86 // 100 - (await session.state())["memory_bytes"]
    await session.cell(f"x = bytearray(b'x') * {size}")
    assert (await session.state())["memory_bytes"] > LIMIT * 81 // 100
    return size


async def test_short_of_memory_a_cell_keeps_its_checkpoint(tools):
    async with opened(tools, memory_mb=MEMORY_MB) as session:
        await session.cell("y = 0")
        size = await filled(session)
        for _ in range(2):
            data = await session.cell("y = 1\nwhile True: pass", "timeout", timeout="1s")
            assert data["undone"] and "the cell was undone: variables" in data["message"] and "notes" not in data, data
            assert await session.value("len(x), y") == f"({size}, 0)"
        # Older ones were given up: memory was short.
        await session.cell("y = 2")
        await tools.refuses("rewind_session", "cells", "the oldest one is 1 back", session=session.id, cells=2)
        assert (await session.rewind(1))["undone_cells"] == 1
        assert await session.value("len(x), y") == f"({size}, 0)"


async def test_short_of_memory_a_cell_without_a_checkpoint_is_interrupted_with_a_note(tools):
    async with opened(tools, memory_mb=MEMORY_MB) as session:
        await session.cell(THREAD)
        size = await filled(session)
        data = await session.cell("y = 1\nwhile True: pass", "timeout", timeout="1s")
        assert data["notes"] == ["there is no checkpoint before this cell, because threads are running"], data
        assert "undone" not in data and "what it did until then stays" in data["message"], data
        assert await session.value("len(x), y") == f"({size}, 1)"


async def test_a_cell_whose_checkpoint_was_killed_before_it_began_gets_another(tools):
    async with opened(tools) as session:
        await session.cell("x = 1")
        # The process that has run a cell is the checkpoint of the next one.
        pid = await session.value("import os\nx = 2\nos.getpid()")
        await session.command(KILL.format(pid))
        data = await session.cell("x = 3\nwhile True: pass", "timeout", timeout="1s")
        assert data["undone"] and UNDONE in data["message"] and "notes" not in data, data
        assert await session.value("x") == "2"
        await session.rewind(1)
        assert (await session.rewind(1))["undone_cells"] == 1
        assert await session.value("x") == "1"


async def test_a_cell_whose_process_and_checkpoint_were_killed_is_not_run(tools):
    async with opened(tools) as session:
        await session.cell("x = 1")
        pid = await session.value("import os\nx = 2\nos.getpid()")
        await session.command(KILL.format(f"$(cat /proc/{pid}/task/{pid}/children) {pid}"))
        data = await session.cell("x = 3", "error")
        assert data["undone"] and "the cell did not run" in data["message"], data
        assert "the last 2 cells were undone" in data["message"], data
        assert await session.value("x") == "1"


async def test_processes_of_an_undone_cell_end_also_without_a_newer_checkpoint(tools):
    async with opened(tools) as session:
        await session.command("sleep 1000 & echo $! > before")
        await session.cell("x = 1")
        # Its parent is gone, so it does not keep the next cell from having a checkpoint.
        await session.cell("import os, time\ntime.sleep(0.05)\nx = 2\nos.system('sleep 1000 & echo $! > after');")
        data = await session.cell("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos._exit(3)", "error")
        assert data["undone"] and "the last 2 cells were undone" in data["message"] and "notes" not in data, data
        assert await session.value("x") == "1"
        assert (await session.command(ALIVE.format("before")))["stdout"] == "alive\n"
        assert (await session.command(ALIVE.format("after")))["stdout"] == "gone\n"


async def test_a_cell_that_leaves_room_for_a_checkpoint_only_is_undone_with_the_next_one(tools):
    async with opened(tools) as session:
        await session.cell("x = 1")
        await session.cell(
            "import os\nx = 2\nfiles = []\ntry:\n    while True: files.append(os.open('/dev/null', 0))\nexcept OSError: pass\n"
            "for file in files[-2:]: os.close(file)"
        )
        # A cell needs three descriptors, and its checkpoint two.
        data = await session.cell("x", "error")
        assert data["undone"] and "the cell did not run" in data["message"], data
        assert await session.value("x") == "1"
