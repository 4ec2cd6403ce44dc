"""E2B's own tests against a server.

    scripts/python tests/python/apis_suites.py [SUITE…] [--only PATTERN] [--from FOLDER] [--server URL]

The suites are fetched from their repositories, at the commits in tests/apis/suites.toml, into target/suites/apis. Without
access to them, `--from` names a folder that has the repositories as NAME.git. Each test must pass, or fail for a reason that
suites.toml gives: other failures are errors, and so are tests that pass although they were to fail, and patterns that
no test matches. A table of all tests is written to target/suites/apis.tsv, and the sums are printed as a table for docs/e2b.md.
"""

import argparse
import collections
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from server import ROOT, configuration, listening

FOLDER = ROOT / "target/suites/apis"
SUITES = tomllib.loads((ROOT / "tests/apis/suites.toml").read_text())
# All of a suite, on two cores.
WITHIN_S = 1500
# An API key in the form that every version of the SDKs accepts. The server has no tokens, so it accepts all.
KEY = "e2b_" + "0" * 40
VITEST = """
import { defineConfig } from 'vitest/config'
export default defineConfig({ test: { include: %s, exclude: %s, testTimeout: 60000, maxWorkers: 2 } })
"""


def fetched(name, folder):
    """A git directory that has the commit of a repository."""
    repository = SUITES["repositories"][name]
    if folder is not None:
        return folder / f"{name}.git"
    git = FOLDER / f"{name}.git"
    if not git.exists():
        subprocess.run(["git", "init", "--quiet", "--bare", git], check=True)
    has = ["git", "--git-dir", git, "cat-file", "-e", f"{repository['commit']}^{{commit}}"]
    if subprocess.run(has, check=False, capture_output=True).returncode != 0:
        subprocess.run(
            ["git", "--git-dir", git, "fetch", "--quiet", "--depth", "1", repository["url"], repository["commit"]],
            check=True,
            timeout=600,
        )
    return git


def unpacked(suite, git, folder):
    """The files of a suite, in a folder of their own."""
    commit = SUITES["repositories"][suite["repository"]]["commit"]
    with subprocess.Popen(
        ["git", "--git-dir", git, "archive", commit, suite["folder"]], stdout=subprocess.PIPE
    ) as archive:
        subprocess.run(["tar", "--extract", "--directory", folder], stdin=archive.stdout, check=True)
    assert archive.returncode == 0, f"git archive ended with {archive.returncode}"
    return folder / suite["folder"]


async def run(command, folder, url, report):
    """Runs a suite. Its tests may fail, but it has to write its report."""
    variables = {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": KEY, "PYTHONDONTWRITEBYTECODE": "1"}
    with anyio.fail_after(WITHIN_S):
        ended = await anyio.run_process(
            [str(part) for part in command], cwd=folder, check=False, env=os.environ | variables, stderr=subprocess.STDOUT
        )
    (FOLDER / "last.log").write_bytes(ended.stdout)
    assert report.exists(), ended.stdout.decode()[-5000:]


async def pytest_outcomes(suite, folder, url, only):
    """The outcome of each test of a suite for Python, and what it said."""
    report = folder / "report.xml"
    choice = ["-k", only] if only else []
    await run(
        [
            *[ROOT / "scripts/client", "--python", "e2b_suites", "-m", "pytest", *suite["tests"], *choice],
            *["-o", "addopts=", "--import-mode=importlib", "--numprocesses=2", "--timeout=120", "-q"],
            f"--junitxml={report}",
        ],
        folder,
        url,
        report,
    )
    found = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}"
        bad = next((it for kind in ("failure", "error") for it in case.iter(kind)), None)
        if case.find("skipped") is not None:
            found[name] = ("skipped", case.find("skipped").get("message") or "")
        else:
            found[name] = ("passed", "") if bad is None else ("failed", bad.get("message") or "")
    return found


async def vitest_outcomes(suite, folder, url, only):
    """The same of a suite for JavaScript."""
    report = folder / "report.json"
    packages = ROOT / "tests/apis/node_suites"
    subprocess.run([ROOT / "scripts/node", "--ci", packages], check=True)
    (folder / "node_modules").symlink_to(packages / "node_modules")
    include = [f"{tests}/**/*.test.ts" for tests in suite["tests"]]
    exclude = [*SUITES["left_out"]["files"], "tests/runtimes/**"]
    (folder / "vitest.config.mts").write_text(VITEST % (json.dumps(include), json.dumps(exclude)))
    choice = ["-t", only] if only else []
    await run(
        [
            *[ROOT / "scripts/node", "--file", packages / "node_modules/vitest/vitest.mjs", "run", "--reporter=json"],
            *[f"--outputFile={report}", *choice],
        ],
        folder,
        url,
        report,
    )
    found = {}
    for file in json.loads(report.read_text())["testResults"]:
        name = Path(file["name"]).relative_to(folder)
        if not file["assertionResults"]:
            found[f"{name} (the file)"] = (file["status"], file["message"])
        for test in file["assertionResults"]:
            outcome = test["status"] if test["status"] in ("passed", "failed") else "skipped"
            found[f"{name} {test['fullName']}"] = (outcome, "\n".join(test["failureMessages"]))
    return found


def reason(name, used):
    """Why a test has to fail, or None. Its patterns are added to `used`."""
    matching = [
        (why, pattern)
        for why, patterns in SUITES["by_design"].items()
        for pattern in patterns
        if fnmatch.fnmatchcase(name, pattern)
    ]
    used.update(pattern for _, pattern in matching)
    return matching[0][0] if matching else None


def unused(used):
    """The patterns that no test has."""
    return [pattern for patterns in SUITES["by_design"].values() for pattern in patterns if pattern not in used]


def judged(outcome, why):
    """What the outcome of a test means, when there is this reason that it has to fail."""
    match outcome, why:
        case "passed", None:
            return "passes"
        case "passed", _:
            return "passes against suites.toml"
        case "skipped", _:
            return "skipped by E2B"
        case _, None:
            return "fails"
        case _:
            return "fails by design"


@asynccontextmanager
async def serving(url):
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="isolator-apis-") as folder:
        folder = Path(folder)
        settings = {"apis": {"e2b": {}}, "sessions": {"max": 200, "memoryMB": 16384}, "requests": {"maxRunning": 16}}
        with (FOLDER / "server.log").open("w") as log:
            async with listening(folder, configuration(folder, **settings), log) as mcp:
                yield mcp.removesuffix("/mcp")


async def main(args):
    FOLDER.mkdir(parents=True, exist_ok=True)
    is_good = True
    rows = []
    used = set()
    with (ROOT / "target/suites/apis.tsv").open("w") as table:
        async with serving(args.server) as url:
            for name in args.suites or SUITES["suites"]:
                suite = SUITES["suites"][name]
                began = time.monotonic()
                with tempfile.TemporaryDirectory(prefix="isolator-suite-") as folder:
                    files = unpacked(suite, fetched(suite["repository"], args.folder), Path(folder))
                    outcomes = vitest_outcomes if name.startswith("javascript") else pytest_outcomes
                    found = await outcomes(suite, files, url, args.only)
                counts = collections.Counter()
                for test, (outcome, message) in sorted(found.items()):
                    why = reason(test, used)
                    verdict = judged(outcome, why)
                    counts[verdict] += 1
                    first = (message.strip().splitlines() or [""])[0][:300]
                    table.write(f"{name}\t{test}\t{verdict}\t{why or ''}\t{first}\n")
                    if verdict in ("fails", "passes against suites.toml"):
                        is_good = False
                        print(f"  {name}: {test}: {verdict}: {first}")
                table.flush()
                if not args.only and counts["passes"] < suite["least"]:
                    is_good = False
                    print(f"  {name}: only {counts['passes']} tests pass, and {suite['least']} must")
                rows.append((suite["title"], counts, time.monotonic() - began))
    if not args.suites and not args.only:
        for pattern in unused(used):
            is_good = False
            print(f"  suites.toml: no test matches {pattern}")
    print("| suite | passes | fails by design | skipped by E2B | fails | seconds |\n|---|---|---|---|---|---|")
    for title, counts, seconds in rows:
        failed = counts["fails"] + counts["passes against suites.toml"]
        values = (counts["passes"], counts["fails by design"], counts["skipped by E2B"], failed, round(seconds))
        print(f"| {title} | {' | '.join(map(str, values))} |")
    return is_good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run E2B's own tests against a server.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"some of {', '.join(SUITES['suites'])}")
    parser.add_argument("--only", metavar="PATTERN", help="tests of this name, as -k of pytest or -t of vitest")
    parser.add_argument("--from", dest="folder", type=Path, metavar="FOLDER", help="repositories that were fetched before")
    parser.add_argument("--server", metavar="URL", help="a server that runs already")
    args = parser.parse_args()
    if unknown := set(args.suites) - set(SUITES["suites"]):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}")
    sys.exit(0 if anyio.run(main, args) else 1)
