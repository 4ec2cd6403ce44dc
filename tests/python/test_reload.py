"""A server that gets another configuration while it runs."""

import json
import os
import pty
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

import anyio
import pytest
from by_hand import CLIENT, by_hand, post, python, request, run
from faults import NO_POOL, configuration
from operators import ANY_PORT, admin_of, asked, first_line, get, operated, values
from server import BINARY, command, environment, instances, process_with, until

pytestmark = pytest.mark.any_engine

WAITING = 'isolator_sandboxes{pool="python",state="paused"}'
HOT = 'isolator_sandboxes{pool="python",state="hot"}'
SUCCESSFUL = "isolator_config_last_reload_successful"
WHERE = "import os; print(os.getcwd())"


def metrics(admin):
    return values(get(f"{admin}/metrics")[2])


async def reload(admin, *arguments):
    """The output of `isolator reload`, and its exit code."""
    address = admin.removeprefix("http://").replace("0.0.0.0", "127.0.0.1")
    done = await anyio.run_process([BINARY, "reload", address, *arguments], check=False)
    return done.returncode, (done.stdout + done.stderr).decode()


async def printed(url, code=WHERE, number=1):
    """The output of a program, or the text of an error."""
    status, body = await run(url, number, code)
    assert status == 200, body
    return _said(json.loads(body)["result"])


def _said(answer):
    text = answer["content"][0]["text"]
    return (text if answer.get("isError") else answer["structuredContent"]["stdout"]).strip()


async def test_a_reload_changes_what_it_can_and_names_the_rest(tmp_path):
    settings = {"pool": {"size": 1, "hot": 0}, "admin": {"address": ANY_PORT}}
    async with operated(tmp_path, **settings) as (url, admin, said):
        assert await printed(url) == "/workspace"
        assert "javascript" in await printed_in(url, "javascript")
        changed = settings | {
            "pool": {"size": 3, "hot": 1},
            "defaultContainerWorkdir": "/elsewhere",
            "http": {"idleTimeout": "7s"},
            "log": {"level": "debug"},
        }
        configuration(tmp_path, languages={"javascript": {"enabled": True}}, **changed)
        code, text = await reload(admin)
        assert code == 0, text
        for key in ("pool.size", "pool.hot", "defaultContainerWorkdir", "languageSettings.javascript", "log.level"):
            assert key in text, text
        assert "not before the server is started again: http.idleTimeout" in text, text
        # New pools are full before they are used.
        found = metrics(admin)
        assert found[WAITING] + found[HOT] >= 3 and found['isolator_pool_wanted_sandboxes{pool="javascript"}'] == 3
        assert found[SUCCESSFUL] == 1
        assert await printed(url) == "/elsewhere"
        assert await printed_in(url, "javascript") == "1"
        # What has happened before is not forgotten.
        ran = sum(value for name, value in metrics(admin).items() if name.startswith("isolator_executions_total"))
        assert ran >= 3
        assert "the configuration was loaded again" in said()

        configuration(tmp_path, **(changed | {"pool": NO_POOL}))
        code, text = await reload(admin)
        assert code == 0 and "languageSettings.javascript" in text, text
        await until(lambda: metrics(admin)[WAITING] + metrics(admin)[HOT] == 0, 10, "an empty pool")
        assert 'isolator_pool_wanted_sandboxes{pool="javascript"}' not in metrics(admin)
        assert await printed(url) == "/elsewhere"
        assert "javascript" in await printed_in(url, "javascript")


async def printed_in(url, language, code="console.log(1)"):
    message = python(1, code, language=language)
    message["params"]["_meta"] = CLIENT
    _, body = await post(url, json.dumps(message).encode())
    return _said(json.loads(body)["result"])


async def called(url, tool, **arguments):
    """The data of a tool's answer."""
    message = request(1, "tools/call", {"name": tool, "arguments": arguments, "_meta": CLIENT})
    status, body = await post(url, json.dumps(message).encode(), name=tool)
    assert status == 200, body
    return json.loads(body)["result"]["structuredContent"]


async def test_an_invalid_file_changes_nothing_and_is_reported(tmp_path):
    settings = {"pool": {"size": 1, "hot": 0}}
    async with operated(tmp_path, **settings) as (url, admin, said):
        before = metrics(admin)["isolator_config_last_reload_success_timestamp_seconds"]
        for wrong, reason in [
            ({"pool": {"size": "many"}}, "pool.size"),
            ({"http": {"tokens": "nowhere"}}, "http.tokens"),
            ({"admin": {"address": ANY_PORT, "tokens": "nowhere"}}, "admin.tokens"),
            ({"audit": {"path": "/nowhere/audit.jsonl"}}, "audit.path: /nowhere/audit.jsonl can't be written"),
        ]:
            # All of it is valid but for one thing.
            configuration(tmp_path, **(settings | {"defaultContainerWorkdir": "/elsewhere"} | wrong))
            code, text = await reload(admin)
            assert code == 1 and "nothing has changed" in text and reason in text, text
            assert reason in said()
            found = metrics(admin)
            assert found[SUCCESSFUL] == 0
            assert found["isolator_config_last_reload_success_timestamp_seconds"] == before
            assert await printed(url) == "/workspace"
            first = first_line(admin)
            assert re.match(r"WARNING: the configuration was not loaded again at 20\S+Z, and the one before is in force: ", first)
            assert reason in first, first
        assert get(f"{admin}/readyz")[0] == 200
        (tmp_path / "config.json").write_text("{")
        code, text = await reload(admin)
        assert code == 1 and "config.json" in text, text
        configuration(tmp_path, **settings)
        code, text = await reload(admin)
        assert code == 0 and "no key has another value" in text, text
        assert first_line(admin).startswith("isolator ")
        found = metrics(admin)
        assert found[SUCCESSFUL] == 1 and found["isolator_config_last_reload_success_timestamp_seconds"] > before


async def test_no_web_page_can_request_a_reload(tmp_path):
    def status(admin, **headers):
        asking = urllib.request.Request(f"{admin}/reload", method="POST", headers=headers)
        try:
            with urllib.request.urlopen(asking, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    made = subprocess.run([BINARY, "token", "operator"], capture_output=True, check=True, text=True)
    (tmp_path / "operators").write_text(made.stdout)
    (tmp_path / "token").write_text(re.search(r"isolator_[0-9a-f]{64}", made.stderr)[0])
    async with operated(tmp_path, pool=NO_POOL) as (_, admin, _):
        assert status(admin, origin="http://localhost:1") == 403
        assert status(admin, **{"sec-fetch-site": "same-origin"}) == 403
        assert status(admin, host="evil.example") == 403
        assert (await asked(f"{admin}/reload"))[0] == 405
        assert status(admin) == 200
        # Who is answered changes, too.
        configuration(tmp_path, pool=NO_POOL, admin={"address": ANY_PORT, "tokens": "operators"})
        assert (await reload(admin))[0] == 0
        code, text = await reload(admin)
        assert code == 125 and "--token-file" in text, text
        assert (await asked(f"{admin}/metrics"))[0] == 401
        code, text = await reload(admin, "--token-file", str(tmp_path / "token"))
        assert code == 0, text


async def test_requests_end_with_what_they_began_with_and_none_waits_for_a_reload(tmp_path):
    settings = {"pool": {"size": 4, "hot": 2}}
    places = ["/workspace", "/elsewhere"]
    async with operated(tmp_path, **settings) as (url, admin, said):
        answers, over = [], anyio.Event()

        async def calls():
            number = 0
            while not over.is_set():
                began = time.monotonic()
                answers.append((began, await printed(url, number=number), time.monotonic() - began))
                number += 1

        async def long():
            answer = await printed(url, "import os, time; time.sleep(4); print('slow', os.getcwd())", 10_000)
            assert answer == "slow /workspace", answer

        switched = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(long)
            await anyio.sleep(1)
            tasks.start_soon(calls)
            tasks.start_soon(calls)
            for at in range(1, 7):
                configuration(tmp_path, **settings, defaultContainerWorkdir=places[at % 2])
                code, text = await reload(admin)
                assert code == 0, text
                switched.append((time.monotonic(), places[at % 2]))
                await anyio.sleep(0.5)
            over.set()
        assert len(answers) > len(switched), said()
        # A request after a reload and before the next one gets a sandbox of its configuration.
        for (since, place), until_ in zip(switched, [at for at, _ in switched[1:]], strict=False):
            within = [answer for began, answer, took in answers if since < began and began + took < until_ - 0.3]
            assert set(within) <= {place}, (place, within)
        assert {answer for _, answer, _ in answers} == set(places)
        slowest = max(took for *_, took in answers)
        assert slowest < 20, slowest


async def test_a_program_ends_well_and_is_counted_when_its_language_is_removed(tmp_path):
    settings = {"pool": NO_POOL, "admin": {"address": ANY_PORT}}
    both = {"javascript": {"enabled": True}}

    def counted(admin):
        of_it = ("isolator_executions_total{", 'language="javascript"')
        return sum(value for name, value in metrics(admin).items() if name.startswith(of_it[0]) and of_it[1] in name)

    async with operated(tmp_path, languages=both, **settings) as (url, admin, _):
        answers = []

        async def slow():
            answers.append(await printed_in(url, "javascript", "setTimeout(() => console.log('slow'), 8000)"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow)
            await anyio.sleep(2)
            configuration(tmp_path, **settings)
            code, text = await reload(admin)
            assert code == 0 and "languageSettings.javascript" in text, text
            assert not answers, "the program has ended before the reload"
            assert "use one of python" in await printed_in(url, "javascript")
        assert answers == ["slow"]
        configuration(tmp_path, languages=both, **settings)
        code, text = await reload(admin)
        assert code == 0, text
        assert counted(admin) == 1
        assert await printed_in(url, "javascript") == "1"
        assert counted(admin) == 2


async def test_an_open_session_keeps_its_policies_when_its_language_is_removed(tmp_path):
    settings = {"pool": NO_POOL, "admin": {"address": ANY_PORT}, "policies": {"apply": {"python": ["strict"]}}}
    javascript = {"javascript": {"enabled": True}}
    async with operated(tmp_path, languages=javascript, **settings) as (url, admin, _):
        session = (await called(url, "open_session", language="python"))["session"]

        async def cell(code, **arguments):
            return await called(url, "execute_code", session=session, entrypoint_code=code, **arguments)

        async def is_checked():
            for code, files in [("import subprocess", []), ("1", [{"filename": "m.py", "content": "import subprocess"}])]:
                data = await cell(code, additional_files=files)
                assert data["status"] == "refused" and data["violations"], data
            assert (await cell("1 + 1"))["result"] == "2"

        await is_checked()
        configuration(tmp_path, languages=javascript | {"python": {"enabled": False}}, **settings)
        code, text = await reload(admin)
        assert code == 0 and "languageSettings.python" in text, text
        refused = await called(url, "execute_code", language="python", entrypoint_code="1")
        assert refused["status"] == "invalid_arguments" and "use one of javascript" in refused["message"], refused
        await is_checked()
        assert (await called(url, "close_session", session=session))["closed"]


async def test_a_thousand_signals_leave_nothing(tmp_path):
    settings = {"pool": {"size": 1, "hot": 0}}
    async with operated(tmp_path, **settings) as (url, admin, said):
        assert await printed(url) == "/workspace"
        server = process_with(f"XDG_STATE_HOME={tmp_path}")
        await until(lambda: metrics(admin)[WAITING] == 1, 30, "a sandbox")
        made = metrics(admin)['isolator_sandboxes_made_total{pool="python"}']
        descriptors = len(os.listdir(f"/proc/{server}/fd"))
        for _ in range(1000):
            os.kill(server, signal.SIGHUP)
        await until(lambda: "the configuration was loaded again" in said(), 30, "a reload")
        code, text = await reload(admin)
        assert code == 0, text
        assert said().count("the configuration was loaded again") < 100
        assert metrics(admin)['isolator_sandboxes_made_total{pool="python"}'] == made, "nothing was replaced"
        for at in range(30):
            configuration(tmp_path, **settings, defaultContainerWorkdir=f"/at{at}")
            assert (await reload(admin))[0] == 0
        assert await printed(url) == "/at29"
        await until(lambda: metrics(admin)["isolator_sandboxes_leaving"] == 0, 30, "sandboxes that are removed")
        await until(lambda: metrics(admin)[WAITING] == 1, 30, "one sandbox")
        await until(lambda: len(os.listdir(f"/proc/{server}/fd")) <= descriptors + 8, 30, "open files")


async def test_a_host_is_notified_and_its_session_survives(tmp_path):
    settings = {"pool": NO_POOL, "admin": {"address": ANY_PORT}}
    both = {"javascript": {"enabled": True}}
    config = configuration(tmp_path, languages=both, **settings)
    path = tmp_path / "log"
    with path.open("w") as log:
        async with by_hand(tmp_path, config, log) as server:
            admin = await admin_of(path.read_text)
            await server.begin()
            opening = {"name": "open_session", "arguments": {"language": "javascript"}}
            await server.send(request(1, "tools/call", opening))
            opened = (await server.answer(1, 30))["result"]["structuredContent"]
            handle = opened["session"]
            await server.send(python(2, "globalThis.x = 7", language="javascript", session=handle))
            assert not (await server.answer(2, 30))["result"].get("isError")

            configuration(tmp_path, **settings)
            os.kill(server.pid, signal.SIGHUP)
            await until(lambda: "the configuration was loaded again" in path.read_text(), 30, "a reload")
            await until(lambda: "notifications/tools/list_changed" in server.heard, 10, "a notification")
            await server.send(request(3, "tools/list"))
            tools = (await server.answer(3, 30))["result"]["tools"]
            assert "javascript" not in json.dumps([tool["inputSchema"] for tool in tools if tool["name"] == "execute_code"])
            await server.send(python(4, "console.log(x)", session=handle, language="javascript"))
            answer = (await server.answer(4, 30))["result"]
            assert answer["structuredContent"]["stdout"] == "7\n", answer
            await server.send(python(5, "console.log(1)", language="javascript"))
            refused = (await server.answer(5, 30))["result"]
            assert refused["isError"] and "javascript" in refused["content"][0]["text"], refused
            # Nothing of this ends the server.
            await server.send(python(6, "print(6)"))
            assert (await server.answer(6, 30))["result"]["structuredContent"]["stdout"] == "6\n"
            assert metrics(admin)[SUCCESSFUL] == 1


def test_a_server_whose_terminal_is_gone_ends(tmp_path):
    config = configuration(tmp_path, pool=NO_POOL)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(BINARY, [*command(config), "--http", "127.0.0.1:0"], environment(tmp_path) | {"NO_COLOR": "1"})
    said = b""
    while b"listening" not in said:
        said += os.read(terminal, 4096)
    # As `kill` does: it goes on.
    os.kill(pid, signal.SIGHUP)
    while b"loaded again" not in said:
        said += os.read(terminal, 4096)
    os.close(terminal)
    deadline = time.monotonic() + 20
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.1)
    assert instances(tmp_path) == set()
