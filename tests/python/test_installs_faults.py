"""Programs that wait for packages while something happens: a server that is killed, a sandbox that ends, many that ask at once."""

import json

import anyio
import engine
import package_sets
import pytest
from by_hand import by_hand, python, request
from package_index import Index
from package_sets import Store, packages, serving, tools_of
from server import instances, until
from session_calls import Tools, open_session
from test_installs_sandbox import ASK, on_demand

GONE_WITHIN_S = 20
AT_ONCE = 10
DIFFERENT = 4


def many():
    """The packages of the tests, and some that nothing else has asked for."""
    found = packages()
    for number in range(DIFFERENT):
        found.wheel(f"single-{number}", "1.0", files={f"single_{number}.py": f"x = {number}\n"})
    return found


def builds(server, requirement):
    """How many sets were built for requirements that begin so."""
    return server.said().count(f'a set of packages was built requirements="{requirement}')


async def is_asked(index, pattern):
    """Waits until an index is asked for this."""
    with anyio.fail_after(package_sets.BUILT_WITHIN_S):
        while not any(pattern in asked for asked in index.asked):
            await anyio.sleep(0.02)


WAITS = "import subprocess; print(subprocess.run(['pip', 'install', 'alpha<2'], capture_output=True, text=True))"
IMPORTS = f"{WAITS}\nimport alpha; print(alpha.version)"


@pytest.mark.any_engine
async def test_a_server_that_is_killed_while_programs_wait_leaves_nothing(tmp_path):
    state, store = tmp_path / "state", Store(tmp_path / "data")
    with Index(packages()) as index:
        config = on_demand(tmp_path, index)
        index.hangs = "/files/gamma"
        with (tmp_path / "log").open("w") as log, store.used():
            async with by_hand(state, config, log) as server:
                await server.begin()
                (instance,) = instances(state)
                await server.send(python("program", WAITS, timeout="120s"))
                await server.send(request("open", "tools/call", {"name": "open_session", "arguments": {"language": "python"}}))
                session = (await server.answer("open", 60))["result"]["structuredContent"]["session"]
                cell = {"session": session, "entrypoint_code": "!pip install 'alpha<2'", "timeout": "120s"}
                await server.send(request("cell", "tools/call", {"name": "execute_code", "arguments": cell}))
                await is_asked(index, "/files/gamma")
                server.process.kill()
                await server.process.wait()
                assert not server.answers["program"] and not server.answers["cell"]
        assert store.sets() == []
        # The tool of the killed server may still wait for its file. Nothing of it gets in the way of the next server.
        index.hangs = None
        async with serving(tmp_path, config, store) as server:
            assert (await server.prints(IMPORTS, timeout="60s")).endswith("\n1.1\n")
            assert len(store.sets()) == 1
        index.ended.set()
        await until(lambda: tools_of(store) == [], GONE_WITHIN_S, "the end of the tools")
        async with serving(tmp_path, config, store):
            await until(lambda: store.unfinished() == [], GONE_WITHIN_S, "a store without builds")
        assert engine.left(instance, state) == []


async def test_a_sandbox_that_ends_while_it_waits_takes_nothing_along(tmp_path):
    with Index(packages()) as index:
        async with serving(tmp_path, on_demand(tmp_path, index)) as server:
            tools = await Tools.of(server.client)
            waits = "import subprocess; subprocess.run(['pip', 'install', 'alpha'])"
            # The build goes on without them: it is the same for all.
            index.hangs = "/files/gamma"
            session, closed = await open_session(tools), await open_session(tools)
            await session.cell("x = 1")
            await session.cell(waits, "timeout", timeout="2s")
            async with session.running(waits, timeout="60s"):
                await anyio.sleep(0.5)
                assert await session.interrupt()
            async with closed.running(waits, timeout="60s"):
                await anyio.sleep(0.5)
                assert await closed.close()
            index.hangs = None
            index.ended.set()
            cell = await session.cell("!pip install -q alpha; python3 -c 'import alpha; print(alpha.version)'\nprint(x)", timeout="60s")
            assert cell["stdout"] == "2.0\n1\n", cell
            assert builds(server, "alpha") == 1
            await session.close()
            assert await server.prints(f"{ASK}print(new('gamma'))", timeout="60s") == "['gamma']\n"


async def test_many_sandboxes_at_once_get_a_new_set_that_is_built_once(tmp_path):
    with Index(many()) as index:
        # All slots are taken by programs that wait for the build, which needs a sandbox, too.
        config = on_demand(tmp_path, index, requests={"maxRunning": AT_ONCE})
        async with serving(tmp_path, config) as server:
            await server.are("ready")

            async def all_of(wanted):
                found = {}

                async def run(number):
                    code = f"{ASK}print(json.dumps(new({wanted(number)!r})))"
                    found[number] = json.loads(await server.prints(code, timeout="120s"))

                async with anyio.create_task_group() as group:
                    for number in range(AT_ONCE):
                        group.start_soon(run, number)
                return [found[number] for number in range(AT_ONCE)]

            assert await all_of(lambda _: "alpha") == [["alpha", "gamma"]] * AT_ONCE
            assert builds(server, "alpha") == 1
            # Sets that are there, another one for each neighbour.
            for number in range(DIFFERENT):
                await server.prints(f"{ASK}new('single-{number}')", timeout="60s")
            expected = [[f"single-{number % DIFFERENT}"] for number in range(AT_ONCE)]
            assert await all_of(lambda number: f"single-{number % DIFFERENT}") == expected
            assert builds(server, "single") == DIFFERENT


HOSTILE = """
import subprocess, sys
def tried(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=50, **options)
    return done.returncode, (done.stderr or done.stdout)[-3000:]
open("many.txt", "w").write("".join("name-%d\\n" % number for number in range(10_000)))
open("long.txt", "w").write("a[" + ",".join("e%d" % number for number in range(200_000)) + "]\\n")
open("binary.txt", "wb").write(bytes(range(256)) * 40)
open("endless.txt", "w").write("-r endless.txt\\n")
attempts = [
    ["pip", "install", "gamma\\nshadow"], ["pip", "install", "gamma\\r\\x1b[2Jshadow"], ["pip", "install", "\\u202egamma"],
    ["pip", "install", "gamma[" + "x" * 90_000 + "]"], ["pip", "install", "gamma" + "[a]" * 3], ["pip", "install", *["gamma%d" % number for number in range(600)]],
    ["pip", "install", "-r", "many.txt"], ["pip", "install", "-r", "long.txt"], ["pip", "install", "-r", "binary.txt"],
    ["pip", "install", "-r", "endless.txt"], ["pip", "install", "-r", "/dev/zero"], ["pip", "install", "-r", "/proc/self/mem"],
    ["pip", "install", "gamma>=" + "1." * 20_000 + "1"], ["pip", "install", "gamma; " + "(" * 3000], ["pip", "install", ""],
    ["uv", "pip", "install", "gamma @ ../../etc"], ["npm", "install", "a\\nb"], ["npm", "install", "../.."], ["npm", "install", "a@" + "1" * 90_000],
]
print([tried(*attempt) for attempt in attempts])
"""

# Children that connect and go, ask half, ask and stop reading, or ask without an end.
FLOOD = """
import os, signal, socket, time
pids = []
for number in range(24):
    pid = os.fork()
    if pid == 0:
        try:
            until = time.monotonic() + 4
            while time.monotonic() < until:
                sockets = []
                for kind in range(20):
                    it = socket.socket(socket.AF_UNIX)
                    it.setblocking(False)
                    try:
                        it.connect(b"\\0isolator-packages")
                        it.send([b"", b'{"language": "python", "requi', b"{}\\n", b'{"language": "python", "requirements": ["alpha==9"]}\\n', b"x" * 60_000][kind % 5])
                        if kind % 3 == 0: it.shutdown(socket.SHUT_RD)
                        if kind % 4 == 0: it.shutdown(socket.SHUT_WR)
                    except OSError:
                        pass
                    sockets.append(it)
                    if number % 2: it.close()
        finally:
            os._exit(0)
    pids.append(pid)
for pid in pids: os.waitpid(pid, 0)
time.sleep(3)
"""


@pytest.mark.any_engine
async def test_hostile_command_lines_are_refused_in_words(tmp_path):
    with Index(packages()) as index:
        config = on_demand(tmp_path, index, limits={"maxOutputKB": 1024})
        async with serving(tmp_path, config) as server:
            tried = eval(await server.prints(HOSTILE, timeout="60s"))
            for code, said in tried:
                assert code != 0 and said and len(said) < 1500, (code, said[:2000])
                assert "Traceback" not in said and "\x1b" not in said and "\u202e" not in said and str(tmp_path) not in said, said
            assert not any("shadow" in asked for asked in index.asked)


@pytest.mark.any_engine
async def test_a_flood_by_children_leaves_the_sandbox_and_the_server_at_work(tmp_path):
    with Index(packages()) as index:
        async with serving(tmp_path, on_demand(tmp_path, index)) as server:
            tools = await Tools.of(server.client)
            session = await open_session(tools)
            await session.cell("x = 1")
            async with session.running(FLOOD, timeout="60s") as answers:
                # Others are served meanwhile.
                assert await server.prints(f"{ASK}print(new('gamma'))", timeout="60s") == "['gamma']\n"
            assert answers[0].structured_content["status"] == "success", answers
            cell = await session.cell("print(x)\n!sleep 30; pip install -q gamma && python3 -c 'import gamma; print(gamma.value)'", timeout="60s")
            assert cell["stdout"] == "1\n3\n", cell
            await session.close()
