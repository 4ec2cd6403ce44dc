"""How long `pip install` takes in programs: of a set that is there, and in ten sandboxes at once. Nothing else should run on the machine."""

import statistics
import tempfile
from pathlib import Path

import anyio
import engine
from package_index import Index
from package_sets import packages, serving
from test_installs_sandbox import on_demand

AT_ONCE = 10
ALONE = 5
PACE_S = 0.5

PROGRAM = """
import subprocess, time
began = time.monotonic()
subprocess.run(["pip", "install", "-q", {!r}], check=True)
print(time.monotonic() - began)
"""


async def together(server, wanted):
    """The seconds of the command in programs that run at the same time, one for each requirement."""
    await anyio.sleep(PACE_S)
    took = []

    async def run(requirement):
        took.append(float(await server.prints(PROGRAM.format(requirement), timeout="60s")))

    async with anyio.create_task_group() as group:
        for requirement in wanted:
            group.start_soon(run, requirement)
    return took


async def measure(folder):
    found = packages()
    for number in range(AT_ONCE):
        found.wheel(f"single-{number}", "1.0", files={f"single_{number}.py": ""})
    different = [f"single-{number}" for number in range(AT_ONCE)]
    with Index(found) as index:
        settings = {"requests": {"maxRunning": AT_ONCE}, "pool": {"size": AT_ONCE, "hot": 2}}
        async with serving(folder, on_demand(folder, index, **settings)) as server:
            # What the first build finds out about the image.
            await together(server, ["gamma"])
            yield "one, of a set that is there", [took for _ in range(ALONE) for took in await together(server, ["gamma"])]
            yield f"{AT_ONCE} at once, of the same new set", await together(server, ["alpha"] * AT_ONCE)
            yield f"{AT_ONCE} at once, of the same set that is there", await together(server, ["alpha"] * AT_ONCE)
            yield f"{AT_ONCE} at once, of {AT_ONCE} new sets", await together(server, different)
            yield f"{AT_ONCE} at once, of {AT_ONCE} sets that are there", await together(server, different)


async def main(folder):
    print(f"{engine.KIND}\n| pip install | median | longest |\n|---|---|---|")
    async for name, took in measure(folder):
        print(f"| {name} | {statistics.median(took):.2f} s | {max(took):.2f} s |", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(main, Path(folder))
