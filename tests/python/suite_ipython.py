"""IPython's own tests, in kernels of sessions and in plain interpreters.

    scripts/python tests/python/suite_ipython.py [PATTERN]

The tests come with the sources of the locked version, and run with the Python of the embedded engine's image, see scripts/jupyter.
Each file runs in a new kernel, in a cell, and its tests get the shell of the session where they expect IPython's own. Tests that
end as in a plain interpreter say nothing. The causes of others are in tests/notebook/ipython.toml; any that is not there is an
error, and so is one that is gone. A table of all tests is written to target/suites/ipython.tsv.
"""

import argparse
import collections
import fnmatch
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree
from pathlib import Path

import kernel
from server import ROOT

JUPYTER = ROOT / "scripts/jupyter"
LOCK = ROOT / "images/python/requirements.txt"
FOLDER = ROOT / "target/suites"
KNOWN = tomllib.loads((ROOT / "tests/notebook/ipython.toml").read_text())
# For the tests of one file.
WITHIN_S = 600
OPTIONS = ["--quiet", "-p", "no:cacheprovider", "--junitxml"]

# The tests ask for the shell of a terminal.
CELL = """
import os, sys
os.chdir({folder!r})
sys.path.insert(0, {folder!r})
from IPython.terminal.interactiveshell import TerminalInteractiveShell
TerminalInteractiveShell._instance = get_ipython()
TerminalInteractiveShell.instance = classmethod(lambda cls, *arguments, _shell=get_ipython(), **options: _shell)
import pytest
pytest.main([{file!r}, *{options!r}, {report!r}]);
"""


def fetched():
    """A folder with the sources of the locked version. Its hash is in the lock."""
    version = re.search(r"(?m)^ipython==(\S+)", LOCK.read_text())[1]
    folder = FOLDER / f"ipython-{version}"
    if not folder.exists():
        locked = re.search(r"(?ms)^ipython==.*?(?=^\S)", LOCK.read_text())[0]
        with tempfile.TemporaryDirectory() as new:
            wanted = Path(new, "wanted.txt")
            wanted.write_text(locked)
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run(
                [*pip, "--no-binary", "ipython", "--require-hashes", "--dest", new, "--requirement", wanted], check=True
            )
            (archive,) = Path(new).glob("ipython-*.tar.gz")
            FOLDER.mkdir(parents=True, exist_ok=True)
            shutil.unpack_archive(archive, new, filter="data")
            shutil.move(Path(new, f"ipython-{version}"), folder)
    return folder


def in_plain(file, folder):
    """The outcomes of a file's tests in a plain interpreter."""
    report = folder / "plain.xml"
    subprocess.run(
        [JUPYTER, "-m", "pytest", file, *OPTIONS, report],
        cwd=folder,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=WITHIN_S,
    )
    return outcomes(report)


def in_session(file, folder):
    """The outcomes of a file's tests in a kernel of a session."""
    report = folder / "session.xml"
    runner = kernel.Runner(folder)
    try:
        runner.run(CELL.format(folder=str(folder), file=file, options=OPTIONS, report=str(report)), within=WITHIN_S)
    finally:
        runner.close()
    return outcomes(report)


def outcomes(report):
    """How each test of a report ended, and a line about it."""
    found = {}
    if report.exists():
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            end = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
            name = f"{case.get('classname').removeprefix('tests.')}::{case.get('name')}"
            why = "" if end is None else " ".join((end.get("message") or "").split())[:200]
            found[name] = ("passed" if end is None else end.tag, why)
    return found


def cause(name):
    return next((each["why"] for each in KNOWN["causes"] if any(fnmatch.fnmatchcase(name, one) for one in each["tests"])), None)


def compare(file, source, table, counts):
    """Runs a file in both. Returns what is unexpected."""
    rows, wrong = {}, []
    for kind, run in [("plain", in_plain), ("session", in_session)]:
        with tempfile.TemporaryDirectory() as folder:
            for part in ("tests", "conftest.py", "pyproject.toml"):
                copy = shutil.copytree if (source / part).is_dir() else shutil.copy
                copy(source / part, Path(folder, part))
            rows[kind] = run(file, Path(folder))
    for name in sorted(rows["plain"] | rows["session"]):
        (one, _), (other, why) = (rows[kind].get(name, ("did not run", "")) for kind in rows)
        reason = cause(name)
        if one == other:
            outcome = one
            if reason is not None:
                wrong.append(f"{name}: it {one} as in a plain interpreter, although it was not to: {reason}")
        elif reason is None:
            outcome = "unexpected"
            wrong.append(f"{name}: {one} in a plain interpreter, and {other} in a session: {why}")
        else:
            outcome = "different, with a cause"
        counts[outcome] += 1
        table.write(f"{name}\t{one}\t{other}\t{outcome}\t{reason or why}\n")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="*", help="only files with such names, without test_")
    options = parser.parse_args()
    kernel.PYTHON = str(JUPYTER)
    source, counts, wrong = fetched(), collections.Counter(), []
    with (FOLDER / "ipython.tsv").open("w") as table:
        table.write("test\tplain\tsession\toutcome\twhy\n")
        for path in sorted((source / "tests").glob(f"test_{options.pattern}.py")):
            if (reason := KNOWN["left_out"].get(path.stem)) is not None:
                table.write(f"{path.stem}\t\t\tleft out\t{reason}\n")
                counts["files left out"] += 1
                continue
            wrong += compare(f"tests/{path.name}", source, table, counts)
            table.flush()
    print(*wrong, sep="\n")
    print("| outcome | tests |\n|---|---|")
    for outcome, count in counts.most_common():
        print(f"| {outcome} | {count} |")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
