"""The same work in sessions and in kernels of Jupyter, in one run on one machine.

Jupyter's kernels are processes of this machine that `jupyter_client` starts and speaks to, without any sandbox. They come from
PyPI into an environment of their own, or from `--jupyter PYTHON`. Sessions are opened from sandboxes that wait. Nothing else
should run on the machine.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import anyio
import engine
import processes
import sessions
from jupyter import Jupyter, environment
from sessions import Session

OPENED = 20
CELLS = 1000
IDLE = 10
# The last of the cells, which are held against the first.
LAST = 50

# As the image has them, so that both do the same work.
PACKAGES = ["pandas"]
# What is imported ahead, as shipped.
AHEAD = ["numpy", "pandas"]
# What a sandbox may use. Jupyter's kernels may use all of the machine.
LIMITS = {"defaultMemoryMB": 512, "defaultCpus": 2}

# Time in which the pool makes the next sandbox.
PACE_S = 1

FIRST = "x = 0"
NEXT = "x += 1"
IMPORT = "import pandas as pd"
FRAME = """\
frame = pd.DataFrame({"key": [i % 100 for i in range(200_000)], "value": range(200_000)})
frame.groupby("key").value.agg(["mean", "sum", "max"]).sort_values("sum").head()"""


class Sessions:
    """Sessions over MCP."""

    def __init__(self, client):
        self.client = client
        self._opened = {}

    async def open(self):
        await anyio.sleep(PACE_S)
        began = time.perf_counter()
        session = await Session.open(self.client)
        took = time.perf_counter() - began
        self._opened[session.id] = session
        return session.id, took

    async def cell(self, which, code):
        began = time.perf_counter()
        answer = await self._opened[which].cell(code)
        took = time.perf_counter() - began
        assert answer.status == "success", answer
        return took

    async def close(self, which):
        await self._opened.pop(which).close()

    async def memory(self, opened):
        """The memory of each in KiB: that of all processes in its sandbox."""
        for which in opened:
            await self._opened[which].put_mark()
        found = sessions.sandboxes()
        return [sessions.memory(found[self._opened[which].mark]) for which in opened]


class Kernels:
    """Kernels of Jupyter."""

    def __init__(self, jupyter, folder):
        self.jupyter, self.folder = jupyter, folder
        self._pids = {}

    async def open(self):
        kernel, pid, took = await anyio.to_thread.run_sync(self.jupyter.start, self.folder)
        self._pids[kernel] = pid
        return kernel, took

    async def cell(self, which, code):
        outputs, took = await anyio.to_thread.run_sync(self.jupyter.cell, which, code)
        assert all(output["output_type"] != "error" for output in outputs), outputs
        return took

    async def close(self, which):
        await anyio.to_thread.run_sync(self.jupyter.stop, which)

    async def memory(self, opened):
        return [sessions.memory([self._pids[which], *processes.children(self._pids[which])]) for which in opened]


async def measure(kind):
    """The cost of one kind: seconds and KiB, each as a list."""
    times = {name: [] for name in ("open", "first cell", "open and first cell", "import pandas", "cell with a table")}
    for _ in range(OPENED):
        which, opened = await kind.open()
        first = await kind.cell(which, FIRST)
        times["open"].append(opened)
        times["first cell"].append(first)
        times["open and first cell"].append(opened + first)
        times["import pandas"].append(await kind.cell(which, IMPORT))
        times["cell with a table"].append(await kind.cell(which, FRAME))
        await kind.close(which)

    which, _ = await kind.open()
    await kind.cell(which, FIRST)
    cells = [await kind.cell(which, NEXT) for _ in range(CELLS)]
    await kind.close(which)
    times[f"`{NEXT}`, the first {LAST}"] = cells[:LAST]
    times[f"`{NEXT}`, the last {LAST} of {CELLS}"] = cells[-LAST:]

    opened = [(await kind.open())[0] for _ in range(IDLE)]
    for which in opened:
        await kind.cell(which, FIRST)
    memory = {"idle": await kind.memory(opened)}
    for which in opened:
        await kind.cell(which, IMPORT)
        await kind.cell(which, FRAME)
    memory["idle, with a table"] = await kind.memory(opened)
    for which in opened:
        await kind.close(which)
    return times, memory


def table(ours, theirs):
    print("| what | session, median | p95 | Jupyter, median | p95 | Jupyter / session |")
    print("|---|---|---|---|---|---|")
    for unit, scale, mine, other in [("ms", 1000, ours[0], theirs[0]), ("MiB", 1 / 1024, ours[1], theirs[1])]:
        for name in mine:
            figures = [[value * scale for value in values[name]] for values in (mine, other)]
            medians = [statistics.median(values) for values in figures]
            cells = [f"{figure:.2f} {unit}" for values in figures for figure in (statistics.median(values), p95(values))]
            print(f"| {name} | {' | '.join(cells)} | {medians[1] / medians[0]:.1f} |")


def p95(values):
    return sorted(values)[min(len(values) * 95 // 100, len(values) - 1)]


async def compare(options, folder):
    python = options.jupyter or await anyio.to_thread.run_sync(environment, folder / "jupyter", PACKAGES)
    settings = {
        "languageSettings": {"python": {"preload": {"modules": AHEAD}}},
        "sessions": {"max": 4 * IDLE, "maxPerClient": 4 * IDLE},
    } | LIMITS
    # One after the other, because idle sandboxes that wait take memory and time, too.
    async with sessions.clients(folder, options.transport, 1, **settings) as (_, [client]):
        assert await sessions.has_sessions(client), "this server has no sessions"
        warm = Sessions(client)
        which, _ = await warm.open()
        await warm.close(which)
        ours = await measure(Sessions(client))
    with Jupyter(python) as jupyter:
        theirs = await measure(Kernels(jupyter, folder))
    print(f"{engine.KIND} over {options.transport}, {os.cpu_count()} cores; {OPENED} opened, {CELLS} cells, {IDLE} idle")
    table(ours, theirs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jupyter", type=Path, metavar="PYTHON", help="a Python with jupyter_client, ipykernel and pandas")
    parser.add_argument("--transport", choices=["stdio", "http"], default="stdio")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(compare, options, Path(folder))


if __name__ == "__main__":
    main()
