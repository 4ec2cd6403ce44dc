"""Programs that ask for packages while they run, over the socket that the commands use."""

import json

import anyio
import package_sets
import pytest
from package_index import Index
from package_sets import packages, python_set, serving
from server import shared
from session_calls import Tools, open_session

# As the commands do it, without them.
ASK = """
import json, socket
def ask(*requirements, language="python", raw=None, **more):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(b"\\0isolator-packages")
        wanted = {"language": language, "requirements": requirements, **more}
        connection.sendall((json.dumps(wanted) if raw is None else raw).encode() + b"\\n")
        *_, last = map(json.loads, connection.makefile())
    return last
def new(*requirements, **more):
    return ask(*requirements, **more)["bound"]["new"]
"""

SETS = {"text": python_set("alpha==1.*", "Odd-Name.pkg")}


def on_demand(folder, index, sets=None, allow=("*",), **settings):
    wanted = {"enabled": True, "allow": list(allow), "maxSets": 64}
    address = {"python": index.python(), "javascript": index.javascript()}
    return package_sets.config(folder, sets, address, onDemand=wanted, **settings)


@pytest.fixture(scope="module")
async def demand(anyio_backend, tmp_path_factory):
    """A server that builds whatever programs ask for, and writes an audit log."""
    folder = tmp_path_factory.mktemp("demand")
    with Index(packages()) as index:
        settings = {"audit": {"path": str(folder / "audit.jsonl")}}
        async with shared(serving(folder, on_demand(folder, index, allow=["alpha", "gamma", "hook", "odd.*", "plain"], **settings))) as server:
            server.folder = folder
            yield server


@pytest.fixture(scope="module")
async def named(anyio_backend, tmp_path_factory):
    """A server with sets of its own, which builds none for programs."""
    folder = tmp_path_factory.mktemp("named")
    with Index(packages()) as index:
        async with shared(serving(folder, package_sets.config(folder, SETS, {"python": index.python()}))) as server:
            await server.are("ready")
            yield server


async def says(server, code, *packages, **arguments):
    """What a program prints as JSON after it could ask for packages."""
    return json.loads(await server.prints(ASK + code, *packages, **{"timeout": "60s"} | arguments))


async def test_a_program_imports_what_it_has_asked_for(demand):
    code = """
before = ask("alpha<2")
import alpha, gamma
after = ask("alpha", "gamma>=1")
print(json.dumps([before, alpha.version, gamma.value, after]))
"""
    before, version, value, after = await says(demand, code)
    assert before == {"bound": {"packages": [{"name": "alpha", "version": "1.1"}, {"name": "gamma", "version": "1.0"}], "new": ["alpha", "gamma"]}}
    assert (version, value) == ("1.1", 3)
    assert after == {"bound": {"packages": before["bound"]["packages"], "new": []}}


async def test_a_second_request_adds_and_keeps_versions_unless_it_asks_for_others(demand):
    code = """
from importlib.metadata import version
first = new("alpha==1.0")
steps = [first, new("Odd_Name.pkg"), version("alpha"), new("alpha", upgrade=True), version("alpha"), new("alpha<2"), version("alpha")]
import odd_name
print(json.dumps([*steps, odd_name.x]))
"""
    assert await says(demand, code) == [["alpha", "gamma"], ["odd-name-pkg"], "1.0", ["alpha"], "2.0", ["alpha"], "1.1", 1]


async def test_a_child_of_a_program_finds_them_too(demand):
    code = """
import subprocess, sys
new("alpha==1.*")
print(subprocess.check_output([sys.executable, "-c", "import alpha; print('[%s]' % alpha.value)"], text=True))
"""
    assert await says(demand, code) == [3]


@pytest.mark.any_engine
async def test_what_an_operator_does_not_allow_is_refused(demand):
    refused = (await says(demand, 'print(json.dumps(ask("shadow")))'))["refused"]
    assert refused["kind"] == "not_allowed" and "shadow" in refused["reason"] and "odd.*" in refused["reason"], refused
    refused = (await says(demand, 'print(json.dumps(ask("alpha>=7")))'))["refused"]
    assert refused["kind"] == "no_match" and "alpha" in refused["reason"], refused
    refused = (await says(demand, 'print(json.dumps(ask("plain", language="javascript")))'))["refused"]
    assert "this sandbox is for python" in refused["reason"], refused


@pytest.mark.any_engine
async def test_hostile_requests_are_refused_in_words(demand):
    code = """
texts = ["-r /etc/passwd", "--index-url=http://x", "git+https://x", "a @ file:///etc", "./x", "a\\nb", "\\0", "x" * 5000, "", "a;b", "alpha;" + "(" * 200]
raw = ["", "[]", "{}", "null", '{"language": "python", "requirements": "alpha"}', "x" * 70000, "\\ud800".encode("utf-8", "surrogatepass").decode("latin-1")]
answers = [ask(text) for text in texts] + [ask(raw=text) for text in raw] + [ask(*["alpha"] * 501)]
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(b"\\0isolator-packages")
    connection.shutdown(socket.SHUT_WR)
    answers.append(json.loads(connection.makefile().read()))
print(json.dumps(answers))
"""
    for answer in await says(demand, code):
        assert answer.keys() == {"refused"} and len(answer["refused"]["reason"]) < 2000, answer


@pytest.mark.any_engine
async def test_a_flood_of_requests_is_slowed_down_and_the_program_goes_on(demand):
    code = """
import threading, time
answers = []
def flood():
    for _ in range(20):
        try: answers.append(ask("alpha>=9").get("refused", {}).get("kind"))
        except OSError: answers.append("closed")
threads = [threading.Thread(target=flood) for _ in range(8)]
for thread in threads: thread.start()
silent = [socket.socket(socket.AF_UNIX) for _ in range(20)]
for one in silent:
    one.setblocking(False)
    try: one.connect(b"\\0isolator-packages")
    except OSError: pass
for thread in threads: thread.join()
for one in silent: one.close()
time.sleep(3)
import collections
print(json.dumps([len(answers), collections.Counter(map(str, answers)), new("gamma")]))
"""
    count, busy, then = await says(demand, code)
    assert count == 160 and busy["busy"] > 80 and "closed" not in busy and then == ["gamma"], busy
    # Those over the burst have one line a minute, and one at the end.
    more = await lines_of_audit(demand, lambda line: "requests" in line, 2)
    assert len(more) == 2 and more[0]["requests"] == 1 and sum(line["requests"] for line in more) <= busy["busy"], more


@pytest.mark.any_engine
async def test_programs_at_once_get_what_each_has_asked_for(demand):
    found = {}

    async def run(number):
        wanted = ["alpha==1.0", "alpha==2.0", "gamma"][number % 3]
        code = f"print(json.dumps([new({wanted!r}), ask('alpha')]))"
        found[number] = await says(demand, code)

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(run, number)
    assert [found[number][0] for number in range(3)] == [["alpha", "gamma"], ["alpha", "gamma"], ["gamma"]]
    assert all(found[number][0] == found[number % 3][0] for number in range(10)), found


async def test_sessions_keep_them_after_an_undo(demand):
    session = await open_session(await Tools.of(demand.client))
    await session.cell(ASK)
    got = await session.cell("print(new('alpha==1.0')); import alpha; print(alpha.version)")
    assert got["stdout"] == "['alpha', 'gamma']\n1.0\n", got
    died = await session.cell("x = new('Odd_Name.pkg'); import os; os._exit(3)", "error")
    assert any("installed packages are still there" in note for note in died["notes"]), died
    got = await session.cell("import odd_name, alpha; print(odd_name.x, alpha.version)")
    assert got["stdout"] == "1 1.0\n", got
    # What Python reads when it starts is read before the next cell, also after the undo.
    got = await session.cell("print(new('hook')); import sys, os; print(hasattr(sys, 'hooked'), 'PYTHONUSERBASE' in os.environ)")
    assert got["stdout"] == "['hook']\nFalse True\n", got
    got = await session.cell("import hook_extra; print(sys.hooked, hook_extra.x, alpha.version)")
    assert got["stdout"] == "True 1 1.0\n", got
    # Commands of the session find them, too.
    got = await session.command("python3 -c 'import odd_name; print(odd_name.x)'; alpha")
    assert got["stdout"] == "1\nalpha runs 3\n", got
    # It is not known which cell has installed what.
    rewound = await session.rewind(1)
    assert any("installed packages are still there" in note for note in rewound["notes"]), rewound
    await session.close()


async def test_modules_for_javascript_are_there_while_a_program_runs(demand):
    code = """
const net = require("net");
const connection = net.connect("\\0isolator-packages");
connection.write(JSON.stringify({ language: "javascript", requirements: ["plain@1"] }) + "\\n");
let all = "";
connection.on("data", (data) => (all += data));
connection.on("end", () => {
  const answer = JSON.parse(all.trim().split("\\n").pop());
  console.log(JSON.stringify([answer.bound.new, require("plain").part]));
});
"""
    printed = json.loads(await demand.prints(code, language="javascript"))
    assert printed == [["@scope/part", "plain"], "part"]


async def lines_of_audit(server, matches, count):
    """The lines of programs' requests that match, once there are as many."""
    with anyio.fail_after(10):
        while True:
            lines = [json.loads(line) for line in (server.folder / "audit.jsonl").read_text().splitlines()]
            found = [line for line in lines if line["tool"] == "install" and matches(line)]
            if len(found) >= count:
                return found
            await anyio.sleep(0.05)


@pytest.mark.any_engine
async def test_each_request_has_a_line_in_the_audit_log(demand):
    await says(demand, 'print(json.dumps(ask("gamma>=1")))')
    found = await lines_of_audit(demand, lambda line: line.get("packages") == ["gamma>=1"], 1)
    assert found[0]["status"] == "success" and len(found[0]["package_set"]) == 64, found


@pytest.mark.any_engine
async def test_without_packages_on_demand_the_sets_of_the_operator_are_there(named):
    code = """
first = new("alpha")
import alpha
print(json.dumps([first, alpha.version, new("gamma"), ask("hook")["refused"]]))
"""
    first, version, second, refused = await says(named, code)
    assert (first, version, second) == (["alpha", "gamma", "odd-name-pkg"], "1.1", [])
    assert refused["kind"] == "off"
    assert "none of its sets has hook" in refused["reason"] and "python are: text" in refused["reason"], refused
    assert 'packages ["text"]' in refused["reason"], refused


@pytest.mark.any_engine
async def test_a_program_adds_to_the_set_of_its_call(demand):
    code = """
from importlib.metadata import version
print(json.dumps([new("Odd_Name.pkg"), version("alpha"), version("odd-name-pkg")]))
"""
    assert await says(demand, code, "alpha==1.0") == [["odd-name-pkg"], "1.0", "1.0"]
