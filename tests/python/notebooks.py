"""Runs notebooks cell by cell in sessions, and compares what comes out with what is stored in them.

What differs may be the work of other versions of the libraries. With `--jupyter PYTHON`, a Python that has `jupyter_client`,
`ipykernel` and the libraries of the image, a kernel of Jupyter runs the same cells, and a cell that differs in the same way
there is counted apart. Generators of random numbers begin with the same seed in both.
"""

import argparse
import base64
import json
import shutil
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import anyio
import notebook_outputs
import sessions
from jupyter import Jupyter
from notebook_outputs import OTHER
from sessions import Session

EQUAL, AS_JUPYTER, FAILED = "equal", "as Jupyter", "failed"
KINDS = [EQUAL, notebook_outputs.LAYOUT, notebook_outputs.ROUNDING, notebook_outputs.PICTURE, AS_JUPYTER, OTHER, FAILED]

# So many of a cell's differences are printed.
SHOWN_DIFFERENCES = 3


class Notebook:
    """A notebook, and the files that lie beside it."""

    def __init__(self, path):
        self.path = path
        cells = json.loads(path.read_text())["cells"]
        cells = [(_text(cell), cell["outputs"]) for cell in cells if cell["cell_type"] == "code"]
        self.cells = [(code, outputs) for code, outputs in cells if code.strip()]
        # Code that looks above the notebook's folder finds what is there.
        looks_above = any("../" in code for code, _ in self.cells)
        self.root = path.parent.parent if looks_above else path.parent
        self.folder = path.parent.relative_to(self.root)

    def files(self):
        """The files that are sent with it: all but notebooks."""
        for file in sorted(self.root.rglob("*")):
            if file.is_file() and file.suffix != ".ipynb":
                content = base64.b64encode(file.read_bytes()).decode()
                yield {"filename": str(file.relative_to(self.root)), "content": content, "encoding": "base64"}

    def first(self):
        """A cell that goes into the notebook's own folder, and seeds what draws random numbers."""
        folder = str(self.folder)
        lines = ["import os as _os, random as _random", f"_os.makedirs({folder!r}, exist_ok=True)", f"_os.chdir({folder!r})"]
        lines += ["_random.seed(1)", "del _os, _random"]
        if any("numpy" in code for code, _ in self.cells):
            lines += ["import numpy as _numpy", "_numpy.random.seed(1)", "del _numpy"]
        return "\n".join(lines)


def _text(cell):
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


class Beside:
    """The same notebook in a kernel of Jupyter, if there is one."""

    def __init__(self, jupyter, notebook, folder):
        self.jupyter = jupyter
        if jupyter is not None:
            shutil.copytree(notebook.root, folder, dirs_exist_ok=True)
            self.kernel = jupyter.start(folder)[0]
            jupyter.cell(self.kernel, notebook.first())

    def cell(self, code, timeout):
        if self.jupyter is None:
            return None
        answer = self.jupyter.answer(self.kernel, code, timeout)
        found = notebook_outputs.of_notebook(answer["outputs"])
        # Some errors are printed only.
        return found._replace(error=found.error or (answer["error"] and answer["error"].rpartition(".")[2]))

    def stop(self):
        if self.jupyter is not None:
            self.jupyter.stop(self.kernel)


def judge(stored, answer, beside):
    """The category of a cell, and its difference."""
    found = notebook_outputs.of_answer(answer)
    is_as_jupyter = beside is not None and beside.error == found.error and not _worse(beside, found)
    if answer.status not in ("success", "error"):
        return FAILED, [f"{answer.status}: {_line(answer.data.get('message') or str(answer))}"]
    if found.error != stored.error or (answer.status == "error") != (stored.error is not None):
        told = f"{found.error or 'no error'} instead of {stored.error or 'none'}: {_line(found.stderr)}"
        return AS_JUPYTER if is_as_jupyter else FAILED, [told]
    differences = notebook_outputs.differences(stored, found)
    if not differences:
        return EQUAL, []
    worst = max((difference.kind for difference in differences), key=KINDS.index)
    if worst == OTHER and is_as_jupyter:
        worst = AS_JUPYTER
    return worst, [str(difference) for difference in differences]


def _worse(one, other):
    return any(difference.kind == OTHER for difference in notebook_outputs.differences(one, other))


def _line(text):
    """The last line that says something."""
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if line.strip()), "")


async def run(notebook, client, jupyter, options):
    """Runs a notebook. Returns for each cell what it is counted as, and how it differs."""
    with tempfile.TemporaryDirectory() as folder:
        beside = Beside(jupyter, notebook, folder)
        judged = []
        try:
            session = await Session.open(client, files=list(notebook.files()), memory_mb=options.memory)
            first = await session.cell(notebook.first())
            assert first.status == "success", first
            for code, outputs in notebook.cells:
                expected = await anyio.to_thread.run_sync(beside.cell, code, options.timeout)
                answer = await session.cell(code, options.timeout + sessions.ANSWERED_WITHIN_S, timeout=f"{options.timeout}s")
                stored = notebook_outputs.of_notebook(outputs)
                judged.append((code, *judge(stored, answer, expected)))
                assert answer.ran, "the session has ended"
            await session.close()
        except Exception as error:
            # The others are run nevertheless.
            code = notebook.cells[len(judged)][0] if len(judged) < len(notebook.cells) else ""
            judged.append((code, FAILED, [f"{type(error).__name__}: {str(error)[:1000]}"]))
        finally:
            beside.stop()
    return judged


async def run_all(options):
    rows, report = [], []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        jupyter = stack.enter_context(Jupyter(options.jupyter)) if options.jupyter else None
        limits = {"maxMemoryMB": options.memory, "maxTimeout": f"{options.timeout}s"}
        async with sessions.clients(Path(folder), "stdio", 1, limits=limits) as (_, [client]):
            assert await sessions.has_sessions(client), "this server has no sessions"
            for path in options.notebooks:
                notebook = Notebook(path)
                began = time.monotonic()
                judged = await run(notebook, client, jupyter, options)
                counts = Counter(kind for _, kind, _ in judged)
                # Cells that were not run are of no other kind.
                counts[FAILED] += max(len(notebook.cells) - len(judged), 0)
                rows.append((path.name, len(notebook.cells), counts))
                tell(path, time.monotonic() - began, judged)
                report += [{"notebook": str(path), "cell": number, "code": code, "kind": kind, "differences": differences}
                           for number, (code, kind, differences) in enumerate(judged, 1)]
    if options.report:
        sessions.save(options.report, report)
    table(rows)


def tell(path, took, judged):
    """Prints what differs in a notebook."""
    print(f"## {path.name}, {took:.0f} s\n")
    for number, (code, kind, differences) in enumerate(judged, 1):
        if kind != EQUAL:
            print(f"cell {number}, {kind}: {code.strip().split(chr(10))[0][:100]}")
            for difference in differences[:SHOWN_DIFFERENCES]:
                print(f"    {difference}")
    print(flush=True)


def table(rows):
    print("| notebook | cells | " + " | ".join(KINDS) + " |")
    print("|---|" + "---|" * (1 + len(KINDS)))
    total = sum((counts for _, _, counts in rows), Counter())
    for name, cells, counts in [*rows, ("all", sum(cells for _, cells, _ in rows), total)]:
        print(f"| {name} | {cells} | " + " | ".join(str(counts[kind]) for kind in KINDS) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--jupyter", type=Path, metavar="PYTHON", help="a Python with Jupyter's kernel, to compare with")
    parser.add_argument("--timeout", type=int, default=120, help="seconds for a cell")
    parser.add_argument("--memory", type=int, default=2048, help="MiB for a session")
    parser.add_argument("--report", type=Path, help="write every cell with all of its differences into this file, as JSON")
    anyio.run(run_all, parser.parse_args())


if __name__ == "__main__":
    main()
