"""Packages that programs install themselves: with pip, uv and npm, in programs, cells and commands of a session."""

import re

import package_sets
import pytest
from package_index import Index
from package_sets import Store, node_set, packages, python_set, serving
from server import ROOT, listening, shared
from session_calls import Tools, opened
from test_apis_clients import FOLDER, KEY, run

SETS = {"small": python_set("gamma"), "parts": node_set("plain@1")}
ALLOWED = ["alpha", "gamma", "odd.*", "plain", "@scope/*"]


@pytest.fixture(scope="module")
async def demand(anyio_backend, tmp_path_factory):
    """A server whose programs can install some packages, and one with sets only."""
    folder = tmp_path_factory.mktemp("installs")
    with Index(packages()) as index:
        address = {"python": index.python(), "javascript": index.javascript()}
        wanted = {"enabled": True, "allow": ALLOWED}
        config = package_sets.config(folder, None, address, onDemand=wanted)
        async with shared(serving(folder, config)) as server:
            yield server


@pytest.fixture(scope="module")
async def tools(demand):
    return await Tools.of(demand.client)


PROGRAM = """
import subprocess, sys
try:
    import alpha
except ImportError:
    done = subprocess.run("pip install 'alpha<2' && python3 -m pip list | grep -E 'alpha|gamma'", shell=True, capture_output=True, text=True)
    print(done.stdout, done.stderr, done.returncode)
import alpha
print(alpha.version, alpha.text, flush=True)
subprocess.check_call([sys.executable, "-c", "import alpha; print('child', alpha.version)"])
subprocess.check_call("alpha; uv pip show alpha | grep ^Version; pip check", shell=True)
"""


async def test_a_program_installs_what_it_then_imports(demand):
    printed = await demand.prints(PROGRAM, timeout=60)
    for said in [
        "Collecting alpha<2\n",
        "Installing collected packages: alpha, gamma\nSuccessfully installed alpha-1.1 gamma-1.0\n",
        "\n1.1 data of alpha\nchild 1.1\nalpha runs 3\nVersion: 1.1\nNo broken requirements found.\n",
    ]:
        assert said in printed, printed
    assert re.search(r"^alpha +1\.1\ngamma +1\.0\n", printed, re.MULTILINE), printed


async def test_a_session_installs_and_its_cells_go_on(tools):
    async with opened(tools) as session:
        kept = "import numpy, sys; kept = numpy.arange(3)"
        await session.cell(kept)
        cell = await session.cell("!pip install numpy 'alpha<1.1' | tail -1")
        assert cell["stdout"] == "Successfully installed alpha-1.0 gamma-1.0\n", cell
        cell = await session.cell("import alpha; print(alpha.version, kept.sum(), sys.modules['numpy'] is numpy)")
        assert cell["stdout"] == "1.0 3 True\n"
        told = await session.command("pip install -q odd-name.pkg && python3 -c 'import odd_name, alpha; print(odd_name.x, alpha.version)'")
        assert told["stdout"] == "1 1.0\n", told
        cell = await session.cell("import odd_name\n!pip install alpha")
        assert re.fullmatch(r"Requirement already satisfied: alpha in \S+ \(1\.0\)\n(Req.* gamma>=1 in \S+ \(from alpha\) \(1\.0\)\n)?", cell["stdout"])
        # A newer version is there for programs that have not imported the old one.
        told = await session.command("pip install -U alpha | tail -1; python3 -c 'import alpha, odd_name; print(alpha.version)'")
        assert told["stdout"] == "Successfully installed alpha-2.0\n2.0\n", told


@pytest.mark.any_engine
async def test_a_cell_is_told_if_its_interpreter_can_not_get_the_packages(tools):
    async with opened(tools) as session:
        await session.cell("import sys; sys.path = tuple(sys.path)\n!pip install -q gamma")
        cell = await session.cell("import gamma")
        assert cell["stderr"].startswith("The path of modules could not get the installed packages: TypeError\n"), cell
        # The kernel has made a list of the path again.
        assert (await session.cell("import gamma; 5"))["result"] == "5"


@pytest.mark.any_engine
async def test_each_refusal_says_what_can_be_done(demand, tools):
    program = "import subprocess, sys; sys.exit(subprocess.run(['pip', 'install', *sys.argv[1:]]).returncode)"
    for args, *said in [
        (["hook"], "hook", "alpha, gamma, odd.*"),
        (["alpha==9"], "alpha", "ERROR: No matching distribution found for alpha==9"),
        (["gamma", "-e", "."], "-e installs a folder"),
    ]:
        answer = (await demand.fails(program, args=args)).structured_content
        assert answer["exit_code"] == 1 and answer["stderr"].startswith("ERROR: "), answer
        assert all(part in answer["stderr"] for part in said), answer["stderr"]
    async with opened(tools) as session:
        told = await session.command("npm install plain", "error")
        assert "this sandbox is for python" in told["stderr"], told


SETS_ONLY = """
const { spawnSync } = require('child_process');
const done = spawnSync('npm install plain; npm install only-esm', { shell: true, encoding: 'utf8' });
console.log(done.stdout, done.stderr);
console.log(require('plain').version, require('plain').part);
"""


@pytest.mark.any_engine
async def test_where_only_sets_are_programs_get_those(tmp_path):
    with Index(packages()) as index:
        config = package_sets.config(tmp_path, SETS, {"python": index.python(), "javascript": index.javascript()})
        async with serving(tmp_path, config) as server:
            await server.are("ready", "small")
            program = "import subprocess\nprint(subprocess.run('pip install gamma; pip install alpha', shell=True, capture_output=True, text=True))"
            printed = await server.prints(program)
            await server.are("ready", "parts", language="javascript")
            required = await server.prints(SETS_ONLY, language="javascript", timeout=60)
    assert "Successfully installed gamma-1.0" in printed, printed
    for said in ["packages.onDemand", "none of its sets has alpha", "small"]:
        assert said in printed, printed
    for said in ["added 2 packages in ", "\n1.1.0 part\n", "packages.onDemand", "none of its sets has only-esm", "parts"]:
        assert said in required, required


JAVASCRIPT = """
const { execSync, spawnSync } = require('child_process');
console.log(execSync('npm install plain@1 lodash', { encoding: 'utf8' }).replace(/ in .*/, ''));
console.log(require('plain').version, require('plain').part, require('lodash').VERSION > '4');
console.log(execSync("node -p \\"require('plain').version\\" && npm ls plain", { encoding: 'utf8' }));
console.log(require('fs').readFileSync('package.json', 'utf8'));
const done = spawnSync('npm', ['install', 'only-esm'], { encoding: 'utf8' });
console.log(done.status, done.stderr);
"""


async def test_npm_installs_what_the_program_then_requires(demand, tools):
    printed = await demand.prints(JAVASCRIPT, language="javascript", timeout=60)
    for said in ["\nadded 2 packages\n", "\n1.1.0 part true\n1.1.0\n", "── plain@1.1.0\n", '"plain": "^1.1.0"', "1 npm error ", "plain, @scope/*"]:
        assert said in printed, printed
    async with opened(tools, language="javascript") as session:
        told = await session.command("npm i plain@2 --silent && node -p 'require(\"plain\").version'")
        assert told["stdout"] == "2.0.0\n", told
        cell = await session.cell("require('plain').version + (await import('plain')).default.part")
        assert cell["result"] == "'2.0.0part'", cell


@pytest.mark.any_engine
async def test_processes_of_the_newest_e2b_sdk_install_packages(tmp_path):
    with Index(packages()) as index:
        address = {"python": index.python(), "javascript": index.javascript()}
        wanted = {"enabled": True, "allow": ALLOWED + ["hook"]}
        config = package_sets.config(tmp_path, None, address, onDemand=wanted, apis={"e2b": {}}, sessions={"memoryMB": 4096})
        with Store(tmp_path / "data").used():
            async with listening(tmp_path, config) as mcp:
                address = mcp.removesuffix("/mcp")
                variables = {"E2B_API_URL": address, "E2B_SANDBOX_URL": address, "E2B_API_KEY": KEY}
                found = await run([ROOT / "scripts/client", "--python", "e2b", FOLDER / "e2b_installs.py"], variables)
    assert found["checks"]
    assert {name: outcome for name, outcome in found["checks"].items() if outcome != "works"} == {}
