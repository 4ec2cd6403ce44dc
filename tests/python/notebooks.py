"""Runs notebooks cell by cell in kernels of Jupyter and in sessions, and fails if a cell differs without a reason.

A folder stands for all notebooks in it. The files in the folder of a notebook are there for its code. Outcomes are compared as those
of the table of inputs (`notebook_table.py`). Generators of random numbers begin with the same seed in both. A cell that also
differs between kernels of Jupyter varies, and `REASONS` has the other differences that are right. With `--command`,
`isolator session` runs the notebook, and what it writes is compared.
"""

import argparse
import base64
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import anyio
import nbformat
import notebook_table
import sessions
from beside_notebook import FIRST, JUPYTER
from engine import KIND
from jupyter import Jupyter
from notebook_table import Outcome
from server import BINARY, configuration, environment
from sessions import Session

SAME, VARIES, UNEXPECTED = "same", "varies from run to run in Jupyter, too", "unexpected"

# Why cells differ, with what their code or their differences have.
REASONS = {
    "a cell is compiled once, so it warns once": r"SyntaxWarning",
    "figures are drawn by the image's own backend": r"_draw_all_if_interactive|matplotlib\.(?:use|get_backend)"
    r"|display\.Javascript object|<Figure [^}]*svg|shown: \[\] \[\{'text': '<Figure",
    "no user can answer a debugger": r"(?m)^%(?:debug|pdb)\b",
    "there is no network": r"URLError|name resolution",
    "Jupyter's own magics are in the list": r"^%(?:lsmagic|quickref)",
    "there is no next cell to fill in, so the text is printed": r"(?m)^%load\b",
    "the traceback keeps another frame of IPython's": r" in wrapper\\n",
    "IPython can't read the file that ipykernel names": r"-+> [^>]*\\n {8}\w+ = ",
    "the message says which bracket is open": r"was never closed",
    "the message says why there are no windows": r"there are no windows here",
    "the user of a sandbox has another name": r"sandbox sandbox",
    "a command's standard error stays apart from its output": r"(?m)^!.*(?:\n.*)*^err: '' '.",
    "the shell has its own class and module": r"ZMQExitAutocall|'__builtins__', '__builtin__'",
}

MEMORY_MB = 3072
SETTINGS = {
    "limits": {"maxMemoryMB": MEMORY_MB, "maxTimeout": "10m", "maxFiles": 2000, "maxFilesKB": 48 << 10, "maxOutputKB": 1024},
    "languageSettings": {"python": {"memoryMB": MEMORY_MB, "cpus": 2}},
    "pool": {"size": 1},
    "results": {"maxFilesKB": 64 << 10},
}

# Kernels of Jupyter that show what varies, for example the order of sets.
KERNELS = 3

# What is printed of a difference.
LONGEST = 1000


class Notebook:
    """A notebook, and the files in its folder."""

    def __init__(self, path):
        self.path = path
        codes = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        codes = [code for code in codes if code.strip()]
        # Code that looks above the notebook's folder finds what is there.
        self.root = path.parent.parent if any("../" in code for code in codes) else path.parent
        self.codes = [_first(str(path.parent.relative_to(self.root)), codes), *codes]

    def files(self):
        return [file for file in sorted(self.root.rglob("*")) if file.is_file()]


def _first(folder, codes):
    """A cell that goes into the notebook's own folder, and seeds what draws random numbers."""
    lines = ["import os as _os, random as _random", f"_os.makedirs({folder!r}, exist_ok=True)", f"_os.chdir({folder!r})"]
    lines += ["_random.seed(1)", "del _os, _random"]
    if any("numpy" in code for code in codes):
        lines += ["import numpy as _numpy", "_numpy.random.seed(1)", "del _numpy"]
    return "\n".join(lines)


def in_jupyter(notebook, jupyter, timeout):
    """The outcome of each cell in a kernel of Jupyter."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(notebook.root, folder, dirs_exist_ok=True)
        kernel = jupyter.start(folder)[0]
        jupyter.answer(kernel, FIRST, silent=True)
        answers = [jupyter.answer(kernel, code, timeout) for code in notebook.codes]
        jupyter.stop(kernel)
    return [notebook_table.of_jupyter(answer) for answer in answers]


async def in_session(notebook, client, timeout):
    """The outcome of each cell in a session."""
    files = []
    for file in notebook.files():
        content = base64.b64encode(file.read_bytes()).decode()
        files.append({"filename": str(file.relative_to(notebook.root)), "content": content, "encoding": "base64"})
    session = await Session.open(client, files=files)
    answers = []
    for code in notebook.codes:
        answers.append(await session.cell(code, timeout + sessions.ANSWERED_WITHIN_S, timeout=f"{timeout}s"))
    await session.close()
    return [notebook_table.of_session(answer) for answer in answers]


def in_command(notebook, config, timeout):
    """The outcome of each cell in the notebook that `isolator session` writes."""
    cells = [nbformat.v4.new_code_cell(code) for code in notebook.codes]
    with tempfile.TemporaryDirectory() as state:
        path = Path(state, notebook.path.name)
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"language_info": {"name": "python"}}), path)
        command = [BINARY, "--engine", KIND, "--config", str(config), "session", str(path), "--out", str(path)]
        command += ["--server", "none", "--quiet", "--keep-going", "--timeout", str(timeout)]
        for file in notebook.files():
            command += ["--file", f"{file.relative_to(notebook.root)}={file}"]
        subprocess.run(command, env=environment(state), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        written = nbformat.read(path, as_version=4)
    nbformat.validate(written)
    return [notebook_table.of_jupyter({"outputs": cell.outputs, "payload": [], "error": _error(cell)}) for cell in written.cells]


def _error(cell):
    return next((output.ename for output in cell.outputs if output.output_type == "error"), None)


def judge(code, theirs, others, ours):
    """The kind of a cell, and how its outcomes differ."""
    differences = notebook_table.differences(theirs, ours)
    if not differences:
        return SAME, []
    if any(notebook_table.differences(theirs, other) for other in others):
        return VARIES, differences
    text = "\n".join([code, *differences])
    return next((reason for reason, pattern in REASONS.items() if re.search(pattern, text)), UNEXPECTED), differences


async def run(notebook, jupyter, timeout, ours):
    """Runs a notebook. Returns for each cell its code, its kind, and how it differs, and how many are errors in Jupyter."""
    theirs = await anyio.to_thread.run_sync(in_jupyter, notebook, jupyter, timeout)
    found, others = await ours(notebook), []
    if any(map(notebook_table.differences, theirs, found)):
        others = [await anyio.to_thread.run_sync(in_jupyter, notebook, jupyter, timeout) for _ in range(KERNELS - 1)]
    judged = []
    for code, one, outcome, *again in zip(notebook.codes, theirs, found, *others, strict=True):
        judged.append((code, *judge(code, one, again, outcome)))
    return judged[1:], sum(outcome.error is not None for outcome in theirs)


async def run_all(options):
    """Runs the notebooks, and prints what they have shown. Returns whether nothing is unexpected."""
    paths = [path for one in options.notebooks for path in (sorted(one.rglob("*.ipynb")) if one.is_dir() else [one])]
    rows = []
    with tempfile.TemporaryDirectory() as folder, Jupyter(JUPYTER) as jupyter:
        async with sessions.clients(Path(folder), "stdio", 1, **SETTINGS) as (_, [client]):

            async def ours(notebook):
                if options.command:
                    config = configuration(Path(folder), **SETTINGS)
                    return await anyio.to_thread.run_sync(in_command, notebook, config, options.timeout)
                return await in_session(notebook, client, options.timeout)

            for path in paths:
                began = time.monotonic()
                judged, errors = await run(Notebook(path), jupyter, options.timeout, ours)
                rows.append((path.name, Counter(kind for _, kind, _ in judged), errors))
                tell(f"{path}, {time.monotonic() - began:.0f} s", judged, options.all)
    table(rows)
    return not any(counts[UNEXPECTED] for _, counts, _ in rows)


def tell(title, judged, is_all):
    """Prints what differs in a notebook."""
    print(f"## {title}\n")
    for number, (code, kind, differences) in enumerate(judged, 1):
        if kind == UNEXPECTED or is_all and kind != SAME:
            print(f"cell {number}, {kind}: {code.strip()[:300]}")
            for difference in differences:
                print(f"    {difference[:LONGEST]}")
    print(flush=True)


def table(rows):
    kinds = [SAME, VARIES, *REASONS, UNEXPECTED]
    total = sum((counts for _, counts, _ in rows), Counter())
    print("| notebook | cells | errors in Jupyter | same | varies | with a reason | unexpected |\n|---|---|---|---|---|---|---|")
    for name, counts, errors in [*rows, (f"all {len(rows)}", total, sum(errors for *_, errors in rows))]:
        reasons = sum(counts[reason] for reason in REASONS)
        print(f"| {name} | {counts.total()} | {errors} | {counts[SAME]} | {counts[VARIES]} | {reasons} | {counts[UNEXPECTED]} |")
    print("\n| cells | number |\n|---|---|")
    for kind in kinds:
        print(f"| {kind} | {total[kind]} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="+", type=Path, help="notebooks, and folders with some")
    parser.add_argument("--timeout", type=int, default=120, help="seconds for a cell")
    parser.add_argument("--command", action="store_true", help="run them with `isolator session`")
    parser.add_argument("--all", action="store_true", help="print every difference")
    sys.exit(not anyio.run(run_all, parser.parse_args()))


if __name__ == "__main__":
    main()
