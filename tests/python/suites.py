"""Public test suites in interpreters that were started ahead, and in plain ones.

Each program of a suite runs on two servers: one that starts nothing ahead, and one that does. What it does must be the
same: its status, exit code and output, or the end of each of its tests. What differs between two plain runs, too, says
nothing. The causes of other differences are in suites.toml; any that is not there is an error.

    scripts/python tests/python/suites.py [cpython|node] [PATTERN]

A table of all programs is written to target/suites. The suites are put into images that are made for this, in a folder
of their own.
"""

import argparse
import base64
import collections
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zlib
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import anyio
import engine
from server import BINARY, ROOT, WAITS, configuration, isolator, receipt

TABLES = ROOT / "target/suites"
KNOWN = tomllib.loads(Path(__file__).with_name("suites.toml").read_text())
IMAGE = "isolator-test/suite"
READY_WITHIN_S = 120


class Unexplained(Exception):
    """Something differs, and it is not known why."""


class CPython:
    """CPython's own tests, from the Debian release of the image. Each module runs in the bare interpreter and in the one
    with modules, and each of its tests must end in the same way."""

    name, language, base = "cpython", "python", "isolator/python"
    fetch, folder = "scripts/cpython-tests", ROOT / "target/cpython"
    paths = ["./usr/lib/python3.13/test"]
    # What the file system of an image does not say; without it numpy starts threads.
    settings = {"env": {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MPLCONFIGDIR": "/tmp/.matplotlib"}}
    timeout, memory_mb, at_once = "5m", 512, 3
    # What comes before a module says which interpreter it gets.
    kinds = {"bare": "", "with modules": "if 0: import pandas"}
    # The number of the process.
    of_the_run = re.compile(r"@test_\d+_tmp")

    def programs(self):
        folder = self.folder / self.paths[0]
        for path in sorted(folder.glob("test_*")):
            # A package has its own modules, which take less time one by one.
            parts = [f"{path.name}.{part.stem}" for part in sorted(path.glob("test_*.py"))]
            yield from parts or [path.stem]

    def program(self, name, kind):
        # The name of what is tested must not decide which interpreter it gets, so that nothing is declined.
        return Path(__file__).with_name("suites_cpython.py").read_text().replace("TESTED", name).replace(
            "import IMPORTED", self.kinds[kind]
        )

    def outcome(self, result, kind):
        """How the tests of a module ended, by name. None if it was not the interpreter that was meant."""
        data = result.structured_content
        last = data["stdout"].rpartition("\nends: ")[2]
        if data["status"] != "success" or not last:
            return {"the module": f"{data['status']}: {data['message']}"}
        said = json.loads(self.of_the_run.sub("@test_*_tmp", zlib.decompress(base64.b64decode(last)).decode()))
        # The modules may not have been imported yet when a sandbox is new.
        is_meant = said["is_loaded"] == (receipt(result)["preloaded"] and kind == "with modules")
        return said["ends"] if is_meant else None

    def passed(self, outcome):
        return sum(end == ["passed"] for end in outcome.values())


class Node:
    """Node.js' own tests that need no network, as they are: Debian has the sources of a version near the image's."""

    name, language, base = "node", "javascript", "isolator/javascript"
    fetch, folder = "scripts/node-tests", ROOT / "target/node-tests"
    paths = ["./common", "./fixtures"]
    settings = {}
    timeout, memory_mb, at_once = "60s", 512, 4
    kinds = {"bare": None}

    # A test with flags would start Node.js again to have them, and that one is a plain one in any case.
    left_out = re.compile(
        r"""^//\s*Flags:|['"](?:node:)?(?:net|https?|http2|dgram|tls|dns|cluster|quic|inspector)(?:/promises)?['"]""",
        re.MULTILINE,
    )
    # What differs between any two runs.
    of_the_run = re.compile(
        r"\b0x[0-9a-f]{6,16}\b|isolator://runs/[0-9a-f]{32}/|\(node:\d+\)|\b\d+(?:\.\d+)? ?ms\b|duration_ms \S+"
    )

    def programs(self):
        for path in sorted((self.folder / "parallel").glob("test-*.js")):
            if not self.left_out.search(path.read_text()):
                yield path.stem

    def program(self, name, kind):
        return (self.folder / "parallel" / f"{name}.js").read_text()

    def outcome(self, result, kind):
        data = result.structured_content
        fields = ("status", "exit_code", "stdout", "stderr", "message")
        return {field: self.of_the_run.sub("*", str(data.get(field))) for field in fields}

    def passed(self, outcome):
        return int(outcome["status"] == "success")


class Comparison:
    """A suite on the two servers, and the table of what was found, which is written as it grows."""

    def __init__(self, suite, plain, ahead, table):
        self.suite, self.plain, self.ahead, self.table = suite, plain, ahead, table
        self.causes = KNOWN[suite.name].get("causes", [])
        self.rows = {}
        table.write("program\toutcome\tpassed\twhy\n")

    async def compare(self, name):
        """Fills the row of a program: what became of it, how many of its tests passed, and what differs and why."""
        try:
            self.rows[name] = await self._row(name)
        except Exception as error:
            self.rows[name] = ("failed", 0, f"{type(error).__name__}: {error}")
        outcome, passed, why = self.rows[name]
        self.table.write(f"{name}\t{outcome}\t{passed}\t{why}\n")
        self.table.flush()

    async def _row(self, name):
        for pattern, reason in KNOWN[self.suite.name]["left_out"].items():
            if fnmatch.fnmatchcase(name, pattern):
                return "left out", 0, reason
        expected = await self._run(self.plain, name, next(iter(self.suite.kinds)))
        why = []
        for kind in self.suite.kinds:
            found = await self._run(self.ahead, name, kind)
            if found is None:
                return "declined", self.suite.passed(expected), "the source says that it could notice"
            if (different := _differences(found, expected)) and not self._explained(name, different):
                # Only what differs each time, and not between two plain runs, says something.
                different -= _differences(await self._run(self.plain, name, kind), expected)
                again = await self._run(self.ahead, name, kind)
                different &= _differences(again, expected)
                if different and not self._explained(name, different):
                    shown = {key: (again.get(key), expected.get(key)) for key in sorted(different)[:5]}
                    return "unexplained", self.suite.passed(expected), f"{kind}: {len(different)}: {shown}"
            if different:
                why.append(f"{kind}: {sorted(different)}: {self._explained(name, different)}")
        return ("known" if why else "equal"), self.suite.passed(expected), "; ".join(why)

    def _explained(self, name, different):
        """Why these tests end in another way, if it is known of all."""
        causes = {self._cause(name, test) for test in different}
        return "" if None in causes else "; ".join(sorted(causes))

    def _cause(self, name, test):
        for cause in self.causes:
            if any(fnmatch.fnmatchcase(f"{name} {test}", pattern) for pattern in cause["tests"]):
                return cause["why"]
        return None

    async def _run(self, server, name, kind):
        """Runs a program, on an interpreter that was started ahead if the server has them. None if it declines."""
        arguments = {
            "language": self.suite.language,
            "entrypoint_code": self.suite.program(name, kind),
            "timeout": self.suite.timeout,
            "memory_mb": self.suite.memory_mb,
        }
        with anyio.fail_after(600):
            while True:
                result = await server.client.call_tool(
                    "execute_code", arguments, meta=WAITS, read_timeout_seconds=400
                )
                assert result.meta, result.content
                served = receipt(result)
                if server is self.plain or served["preloaded"]:
                    if (outcome := self.suite.outcome(result, kind)) is not None:
                        return outcome
                elif served["start"] == "hot":
                    return None


def _differences(found, expected):
    """The tests, or fields, that are not the same in both."""
    return {key for key in found | expected if found.get(key) != expected.get(key)}


def main():
    parser = argparse.ArgumentParser(description="Compare preloaded and plain starts with public test suites.")
    parser.add_argument("suite", nargs="?", choices=["cpython", "node"], help="one of the two")
    parser.add_argument("pattern", nargs="?", default="*", help="only programs with such a name")
    args = parser.parse_args()
    if engine.KIND != "embedded":
        sys.exit("set ISOLATOR_TEST_ENGINE=embedded: the images with the suites are made for the embedded engine")
    suites = [suite for suite in (CPython(), Node()) if args.suite in (None, suite.name)]
    # Each of them is to run, whatever the others found.
    if not all([anyio.run(run, suite, args.pattern) for suite in suites]):
        sys.exit(1)


async def run(suite, pattern):
    if not suite.folder.exists():
        subprocess.run([ROOT / suite.fetch, suite.folder], check=True, timeout=600)
    names = [name for name in suite.programs() if fnmatch.fnmatchcase(name, pattern)]
    began = time.monotonic()
    TABLES.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="isolator-suite-") as folder,
        (TABLES / f"{suite.name}.tsv").open("w") as table,
    ):
        folder = Path(folder)
        with with_image(suite, folder):
            async with AsyncExitStack() as stack:
                servers = [await stack.enter_async_context(server) for server in _servers(suite, folder)]
                comparison = Comparison(suite, *servers, table)
                limit = anyio.CapacityLimiter(suite.at_once)
                async with anyio.create_task_group() as tasks:
                    for name in names:
                        tasks.start_soon(_limited, limit, comparison.compare, name)
    return report(suite, comparison.rows, time.monotonic() - began, pattern == "*")


async def _limited(limit, work, subject):
    async with limit:
        await work(subject)


def _servers(suite, folder):
    """A server that starts nothing ahead, and one with the preloading that is shipped."""
    shipped = json.loads((ROOT / "src/config/languages.json").read_text())
    others = {name: {"enabled": False} for name in shipped if name != suite.language}
    shipped = shipped[suite.language]
    for name, pool, preload in [
        ("plain", {"size": 0, "hot": 0}, {"enabled": False}),
        ("ahead", {"size": 4, "hot": 2}, shipped["preload"]),
    ]:
        (folder / name).mkdir()
        language = {"image": IMAGE, "tmpMB": 128, "workspaceMB": 128, "preload": preload}
        language["env"] = shipped.get("env", {}) | suite.settings.get("env", {})
        config = configuration(
            folder / name,
            defaultCpus=1,
            pool=pool,
            requests={"maxRunning": suite.at_once},
            languageSettings=others | {suite.language: language},
        )
        yield isolator(folder / name, "stdio-auto", config)


@contextmanager
def with_image(suite, folder):
    """An image with the suite, in its own data folder: nothing of it stays on the engine that others use."""
    tar = folder / "root.tar"
    commands = [
        ["tar", "--create", "--numeric-owner", "--file", tar, "--directory", _root_of(suite.base), "."],
        ["tar", "--append", "--owner=0", "--group=0", "--file", tar, "--directory", suite.folder, *suite.paths],
        [BINARY, "--engine", "embedded", "image", "import", tar, "--name", IMAGE],
    ]
    # The commands name the shipped image already.
    os.environ["XDG_DATA_HOME"] = str(folder / "data")
    try:
        for command in commands:
            subprocess.run(command, check=True, timeout=300)
        tar.unlink()
        yield
    finally:
        del os.environ["XDG_DATA_HOME"]
        shutil.rmtree(folder / "data", ignore_errors=True)


def _root_of(name):
    """The files of an image of the embedded engine."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "isolator"
    digest = json.loads((data / "names.json").read_text())[f"docker.io/{name}:latest"]
    return data / "images" / digest.removeprefix("sha256:") / "root"


def report(suite, rows, seconds, is_whole):
    """Prints the sum of what was found, and says whether all is well."""
    counts = collections.Counter(outcome for outcome, *_ in rows.values())
    compared = sum(passed for outcome, passed, _ in rows.values() if outcome in ("equal", "known"))
    parts = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    print(f"{suite.name}: {len(rows)} programs in {seconds / 60:.1f} min: {parts}; {compared} tests pass in both")
    for name, (outcome, _, why) in sorted(rows.items()):
        if outcome in ("unexplained", "failed"):
            print(f"  {name}: {outcome}: {why}")
    is_enough = not is_whole or compared >= KNOWN[suite.name]["least"]
    if not is_enough:
        print(f"  fewer than {KNOWN[suite.name]['least']} tests pass, so that equal outcomes say little")
    return is_enough and not (counts["unexplained"] or counts["failed"])


if __name__ == "__main__":
    main()
