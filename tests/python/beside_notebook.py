"""Runs the table of inputs in kernels of Jupyter and in sessions, and fails if a difference is not in the table, or one there is gone.

Jupyter's kernels run the Python of the embedded engine's image, see scripts/jupyter, so that only the kernels differ. Their
tracebacks are in the mode that sessions begin with.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import anyio
import kernel
import notebook_table
import sessions
from jupyter import Jupyter
from notebook_table import Outcome, inputs
from sessions import Session

JUPYTER = Path(__file__).parents[2] / "scripts/jupyter"
CELL_WITHIN_S = 60
MEMORY_MB = 1024
# As sessions begin.
FIRST = "%xmode Plain"


def in_jupyter(table):
    """The outcomes in kernels of Jupyter, one for each section."""
    found = {}
    with tempfile.TemporaryDirectory() as home:
        with Jupyter(JUPYTER) as jupyter:
            for section, cells in table.items():
                folder = tempfile.mkdtemp(dir=home)
                found[section], which = [], None
                for cell in cells:
                    if which is None:
                        which = jupyter.start(folder)[0]
                        jupyter.answer(which, FIRST, silent=True)
                    answer = jupyter.answer(which, cell.code, CELL_WITHIN_S)
                    found[section].append(notebook_table.of_jupyter(answer))
                    if any(payload["source"] == "ask_exit" for payload in answer["payload"]):
                        jupyter.stop(which)
                        which = None
                if which is not None:
                    jupyter.stop(which)
    return found


async def in_sessions(client, table):
    """The outcomes in sessions, one for each section."""
    found = {}
    for section, cells in table.items():
        session = await Session.open(client, memory_mb=MEMORY_MB)
        answers = [await session.cell(cell.code, timeout=f"{CELL_WITHIN_S}s") for cell in cells]
        found[section] = [notebook_table.of_session(answer) for answer in answers]
        await session.close()
    return found


def in_kernels(table):
    """The outcomes in the kernels of sessions, with the same Python, without a sandbox."""
    kernel.PYTHON, found = str(JUPYTER), {}
    for section, cells in table.items():
        with tempfile.TemporaryDirectory() as folder:
            runner = kernel.Runner(folder)
            try:
                found[section] = [notebook_table.of_kernel(runner.run(cell.code, within=CELL_WITHIN_S)) for cell in cells]
            except kernel.Gone:
                found[section] = [Outcome(error="gone")] * len(cells)
            finally:
                runner.close()
    return found


def unexpected(table, theirs, ours):
    """Differences that the table does not have, and those that are gone: an input and a text for each."""
    for section, cells in table.items():
        for cell, one, other in zip(cells, theirs[section], ours[section], strict=True):
            found = notebook_table.differences(one, other)
            if found and cell.reason is None:
                yield cell, "\n    ".join(found)
            elif not found and cell.reason is not None:
                yield cell, f"there is no difference any more: {cell.reason}"


def tell(table, theirs, ours):
    """Prints what is unexpected, and how many there are. Returns whether there is nothing."""
    wrong = list(unexpected(table, theirs, ours))
    for cell, text in wrong:
        print(f"{notebook_table.INPUTS.name}:{cell.line}, {cell.section}, cell {cell.number}: {cell.code[:200]}\n    {text[:2000]}\n")
    print("| section | inputs | same | different, with a reason | unexpected |\n|---|---|---|---|---|")
    rows = [(name, cells) for name, cells in table.items()] + [("all", [cell for cells in table.values() for cell in cells])]
    for name, cells in rows:
        odd = sum(any(cell is one for one, _ in wrong) for cell in cells)
        listed = sum(cell.reason is not None and not any(cell is one for one, _ in wrong) for cell in cells)
        print(f"| {name} | {len(cells)} | {len(cells) - listed - odd} | {listed} | {odd} |")
    return not wrong


async def all_sessions(table):
    with tempfile.TemporaryDirectory() as folder:
        limits = {"maxMemoryMB": MEMORY_MB, "maxTimeout": f"{CELL_WITHIN_S}s"}
        async with sessions.clients(Path(folder), "stdio", 1, limits=limits) as (_, [client]):
            return await in_sessions(client, table)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write Jupyter's outcomes into the table, for the tests")
    parser.add_argument("--recorded", action="store_true", help="take Jupyter's outcomes from the table")
    parser.add_argument("--kernels", action="store_true", help="run the kernels of sessions, without a sandbox")
    parser.add_argument("--section", action="append", help="only this section")
    options = parser.parse_args()
    table = {name: cells for name, cells in inputs().items() if not options.section or name in options.section}
    theirs = notebook_table.recorded() if options.recorded else in_jupyter(table)
    if options.record:
        notebook_table.record(theirs)
    ours = in_kernels(table) if options.kernels else anyio.run(all_sessions, table)
    sys.exit(not tell(table, theirs, ours))


if __name__ == "__main__":
    main()
