"""The cost of a session that holds a gigabyte: cells, checkpoints and memory.

A checkpoint is made right after an answer. So a cell that comes at once waits for it, and one that comes later does not.
Nothing else should run on the machine.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import anyio
import engine
import sessions
from sessions import Session

CELLS = 50
# Time in which the checkpoint is made, and the session is not frozen yet.
PAUSE_S = 0.2

NEXT = "x += 1"
LOAD = """\
import numpy, pandas
table = pandas.DataFrame(numpy.random.default_rng(1).random(({rows}, 16)))
x = 0
int(table.memory_usage(index=False).sum())"""
# Changes a sixteenth of it.
CHANGE = "table[0] += 1"


async def memory(client, session):
    """Memory of the session in MiB, as the server tells it."""
    (content,) = (await client.read_resource("isolator://sessions")).contents
    (told,) = [it for it in json.loads(content.text) if it["session"] == session.id]
    return told["memory_bytes"] / (1 << 20)


async def cells(session, pause):
    """The times of some cells in milliseconds."""
    took = []
    for _ in range(CELLS):
        await anyio.sleep(pause)
        began = time.perf_counter()
        answer = await session.cell(NEXT)
        took.append((time.perf_counter() - began) * 1000)
        assert answer.status == "success" and "notes" not in answer.data, answer
    return took


async def measure(folder, megabytes):
    limit = 2 * megabytes + 512
    async with sessions.clients(folder, "stdio", 1, limits={"maxMemoryMB": limit}, defaultCpus=1) as (_, [client]):
        for held in (0, megabytes):
            session = await Session.open(client, memory_mb=limit)
            answer = await session.cell(LOAD.format(rows=held << 13), timeout="5m")
            assert answer.data.get("result") == str(held << 20), answer
            loaded = await memory(client, session)
            later, at_once = await cells(session, PAUSE_S), await cells(session, 0)
            kept = await memory(client, session)
            await session.cell(CHANGE)
            changed = await memory(client, session)
            print(
                f"{held} MiB: a cell takes {statistics.median(later):.1f} ms, and {statistics.median(at_once):.1f} ms without a pause; "
                f"{loaded:.0f} MiB when loaded, {kept - loaded:+.0f} MiB with {2 * CELLS} cells and all checkpoints, "
                f"{changed - kept:+.0f} MiB when {held // 16} MiB are changed",
                flush=True,
            )
            await session.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1024)
    options = parser.parse_args()
    print(f"{engine.KIND}, {CELLS} cells of each kind")
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(measure, Path(folder), options.megabytes)


if __name__ == "__main__":
    main()
