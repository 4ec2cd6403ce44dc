"""Calls with idempotency keys over each interface, and the outcome that each answer says."""

import json
import os
import signal
import uuid

import anyio
import pytest
from apis import connected, post, serving
from by_hand import CLIENT, MODERN, by_hand, python, request
from e2b_raw import KEY as E2B_KEY
from e2b_raw import Server as E2bServer
from e2b_raw import envelope
from server import configuration, process_with, shared, until

pytestmark = pytest.mark.any_engine

MCP = {"accept": "application/json, text/event-stream", "mcp_protocol_version": MODERN, "mcp_method": "tools/call"}
# Each run of it prints something else.
RANDOM = "import uuid; print(uuid.uuid4())"
IN_META = "isolator/idempotencyKey"


def a_key():
    return str(uuid.uuid4())


@pytest.fixture(scope="module")
async def place(anyio_backend, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    async with shared(serving(folder, {"sandboxFusion": {}, "piston": {}, "e2b": {}})) as (place, _):
        yield place


async def call(place, name, arguments, meta=None, **headers):
    """Calls a tool. Returns the answer, and the result that it has."""
    message = request(1, "tools/call", {"name": name, "arguments": arguments, "_meta": CLIENT | (meta or {})})
    answer = await post(place, "/mcp", message, mcp_name=name, **MCP, **headers)
    return answer, answer.json["result"]


async def run(place, code=RANDOM, meta=None, **headers):
    return await call(place, "execute_code", {"language": "python", "entrypoint_code": code}, meta, **headers)


def outcome(answer):
    return answer.headers.get("isolator-outcome")


async def test_a_repeated_call_gets_the_first_answer_and_runs_once(place):
    key = a_key()
    answer, first = await run(place, idempotency_key=key)
    assert outcome(answer) == "ran" and first["structuredContent"]["status"] == "success", answer.body
    assert (await run(place, idempotency_key=f'"{key}"'))[1] == first
    assert (await run(place, meta={IN_META: key}))[1] == first
    # Without a key, and with another, it runs again.
    others = [(await run(place))[1], (await run(place, idempotency_key=a_key()))[1]]
    printed = [result["structuredContent"]["stdout"] for result in [first, *others]]
    assert len(set(printed)) == 3


async def test_a_key_stands_for_one_request(place):
    key = a_key()
    await run(place, idempotency_key=key)
    answer, result = await run(place, "print(1)", idempotency_key=key)
    assert answer.status == 200 and outcome(answer) == "not-run"
    assert result["structuredContent"]["status"] == "invalid_arguments"
    assert "used for another request" in result["structuredContent"]["message"]
    assert result["_meta"]["isolator/outcome"] == "not-run"
    # A load balancer may have added the header.
    own = {IN_META: a_key()}
    _, first = await run(place, meta=own, idempotency_key=key)
    assert (await run(place, meta=own, idempotency_key=a_key()))[1] == first
    for meta in ({IN_META: 7}, {IN_META: ""}, {IN_META: "x" * 256}):
        _, result = await run(place, meta=meta)
        assert result["structuredContent"]["field"] == f'_meta["{IN_META}"]'


async def test_a_cell_whose_connection_breaks_runs_once(place):
    _, opened = await call(place, "open_session", {"language": "python"}, idempotency_key=(key := a_key()))
    assert (await call(place, "open_session", {"language": "python"}, idempotency_key=key))[1] == opened
    session = {"session": opened["structuredContent"]["session"]}
    await call(place, "execute_code", session | {"entrypoint_code": "n = 0"})
    cell = session | {"entrypoint_code": "import time; time.sleep(1); n += 1; n"}
    key = a_key()
    with anyio.move_on_after(0.4):
        await call(place, "execute_code", cell, idempotency_key=key)
    answers = []

    async def again():
        answers.append((await call(place, "execute_code", cell, idempotency_key=key))[1])

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(again)
    assert answers[0] == answers[1] == answers[2]
    _, after = await call(place, "execute_code", session | {"entrypoint_code": "n"})
    assert after["structuredContent"]["result"] == "1", after


async def test_each_answer_says_whether_the_call_has_run(place):
    expected = [
        ({"language": "python", "entrypoint_code": "raise SystemExit(3)"}, "ran"),
        ({"language": "python", "entrypoint_code": "def f(:"}, "ran"),
        ({"language": "cobol", "entrypoint_code": "x"}, "not-run"),
        ({"session": "0" * 32, "entrypoint_code": "x"}, "not-run"),
    ]
    for arguments, word in expected:
        answer, result = await call(place, "execute_code", arguments)
        assert outcome(answer) == word, answer.body
        assert result.get("_meta", {}).get("isolator/outcome") == (word if word != "ran" else None)
    # A session that ends with the call has run a part of it, perhaps.
    _, opened = await call(place, "open_session", {"language": "python"})
    session = {"session": opened["structuredContent"]["session"]}
    assert outcome((await call(place, "close_session", session))[0]) == "ran"
    assert outcome((await call(place, "execute_code", session | {"entrypoint_code": "1"}))[0]) == "not-run"
    async with connected(place) as connection:
        assert outcome(await connection.post("/mcp", b"{", **MCP)) == "not-run"


async def test_a_cell_that_its_interpreter_did_not_take_has_not_run(place):
    _, opened = await call(place, "open_session", {"language": "python"})
    session = {"session": opened["structuredContent"]["session"]}
    # Its thread ends the interpreter, after this cell and before the next one.
    ends = "import os, threading\n_ = threading.Timer(0.3, os._exit, [1]).start()"
    await call(place, "execute_code", session | {"entrypoint_code": ends})
    await anyio.sleep(0.8)
    key = a_key()
    write = session | {"entrypoint_code": "open('ran', 'a').write('x')"}
    answer, result = await call(place, "execute_code", write, idempotency_key=key)
    assert outcome(answer) == "not-run" and result["isError"], answer.body
    assert result["_meta"]["isolator/outcome"] == "not-run" and "did not run" in result["content"][0]["text"], result
    # So its key is free, and the session goes on.
    answer, result = await call(place, "execute_code", write, idempotency_key=key)
    assert outcome(answer) == "ran" and result["structuredContent"]["result"] == "1", answer.body


async def test_keys_outlive_a_reload_of_the_configuration(tmp_path):
    async with serving(tmp_path, {"sandboxFusion": {}}) as (place, said):
        body, key, other = {"code": RANDOM, "language": "python"}, a_key(), a_key()
        first = await post(place, "/run_code", body, idempotency_key=key)
        in_session = {"language": "python"}
        _, opened = await call(place, "open_session", in_session, idempotency_key=other)
        path = tmp_path / "config.json"
        changed = json.loads(path.read_text()) | {"requests": {"maxQueue": 7}}
        path.write_text(json.dumps(changed))
        os.kill(process_with(f"XDG_STATE_HOME={tmp_path}"), signal.SIGHUP)
        await until(lambda: "the configuration was loaded again" in said(), 10, "the configuration is loaded again")
        again = await post(place, "/run_code", body, idempotency_key=key)
        assert again.body == first.body and first.status == 200, again.body
        assert (await call(place, "open_session", in_session, idempotency_key=other))[1] == opened
        # Where no answers are kept any longer, a mark stays.
        path.write_text(json.dumps(changed | {"requests": {"keyedAnswersMB": 0}}))
        os.kill(process_with(f"XDG_STATE_HOME={tmp_path}"), signal.SIGHUP)
        await until(lambda: said().count("the configuration was loaded again") == 2, 10, "the configuration is loaded again")
        again = await post(place, "/run_code", body, idempotency_key=key)
        assert (again.status, outcome(again)) == (409, "ran"), again.body


async def test_apis_answer_a_repeated_request_with_the_first_answer(place):
    fusion = {"code": RANDOM, "language": "python"}
    piston = {"language": "python", "version": "*", "files": [{"content": RANDOM}]}
    jupyter = {"cells": [RANDOM], "kernel": "python3"}
    for path, body in [("/run_code", fusion), ("/run_jupyter", jupyter), ("/api/v2/execute", piston)]:
        key = a_key()
        first = await post(place, path, body, idempotency_key=key)
        assert (first.status, outcome(first)) == (200, "ran"), first.body
        second = await post(place, path, dict(reversed(body.items())), idempotency_key=key)
        assert (second.status, second.body) == (200, first.body)
        assert (await post(place, path, body)).body != first.body
        other = await post(place, path, body | {"language": "python", "code": "", "cells": []}, idempotency_key=key)
        assert other.status in (400, 422) and outcome(other) == "not-run", other.body
        wrong = await post(place, path, body, idempotency_key="\t")
        assert wrong.status in (400, 422) and b"printable" in wrong.body, wrong.body
    other = await post(place, "/run_code", fusion | {"code": "1"}, idempotency_key=(key := a_key()))
    other = await post(place, "/run_code", fusion, idempotency_key=key)
    assert other.status == 422 and "another request" in other.json["detail"], other.body
    # A request that did not run leaves nothing.
    key = a_key()
    refused = await post(place, "/run_code", fusion | {"run_timeout": 1e9}, idempotency_key=key)
    assert (refused.status, outcome(refused)) == (422, "not-run")
    assert (await post(place, "/run_code", fusion, idempotency_key=key)).status == 200


def test_e2b_creates_one_sandbox_and_runs_a_cell_and_a_process_once(place):
    server = E2bServer("http://%s:%d" % place)

    def create(key, **fields):
        body = json.dumps({"templateID": "base"} | fields)
        return server.request("POST", "/sandboxes", body, X_API_KEY=E2B_KEY, Idempotency_Key=key)

    key = a_key()
    status, first, headers = create(key)
    assert (status, headers["isolator-outcome"]) == (201, "ran"), first
    assert create(key)[:2] == (201, first)
    status, body, headers = create(key, timeout=20)
    assert (status, headers["isolator-outcome"]) == (422, "not-run") and b"another request" in body
    assert create("\u00a0".encode())[0] == 400
    sandbox = server.create()
    body = json.dumps({"code": "open('cells', 'a').write('x')"})
    key = a_key()
    status, _, headers = sandbox.request("POST", "/execute", body, Idempotency_Key=key)
    # On a busy machine, the answer begins before the cell has ended.
    assert status == 200 and headers["isolator-outcome"] in ("ran", "unknown")
    status, body, headers = sandbox.request("POST", "/execute", body, Idempotency_Key=key)
    assert (status, headers["isolator-outcome"]) == (409, "ran") and b"not kept" in body
    # A stream of Connect has its error in its last message.
    start = {"process": {"cmd": "/bin/sh", "args": ["-c", "echo -n x >>starts"]}}
    key = a_key()
    with sandbox.streaming("process.Process/Start", envelope(start), Idempotency_Key=key) as stream:
        assert stream.all()[1] == {}
    with sandbox.streaming("process.Process/Start", envelope(start), Idempotency_Key=key) as stream:
        assert stream.all()[1]["error"]["code"] == "failed_precondition"
        assert stream.answer.headers["isolator-outcome"] == "ran"
    status, cells, _ = sandbox.request("GET", "/files?path=/home/user/cells")
    assert (status, cells) == (200, b"x")
    assert sandbox.request("GET", "/files?path=/home/user/starts")[1] == b"x"


async def test_hosts_on_standard_input_give_a_key_in_meta(tmp_path):
    with (tmp_path / "log").open("w") as log:
        async with by_hand(tmp_path, configuration(tmp_path), log) as server:
            for number in (1, 2):
                message = python(number, RANDOM)
                message["params"]["_meta"] = CLIENT | {IN_META: "one"}
                await server.send(message)
            first, second = await server.answer(1, 30), await server.answer(2, 30)
            assert first["result"] == second["result"]
            assert first["result"]["structuredContent"]["status"] == "success"


async def test_an_answer_that_was_not_kept_is_not_run_again(tmp_path):
    settings = {"requests": {"keyedAnswersMB": 0}}
    async with serving(tmp_path, {"sandboxFusion": {}}, **settings) as (place, _):
        body = {"code": RANDOM, "language": "python"}
        key = a_key()
        first = await post(place, "/run_code", body, idempotency_key=key)
        again = await post(place, "/run_code", body, idempotency_key=key)
        assert (first.status, again.status, outcome(again)) == (200, 409, "ran")
        assert "was not kept" in again.json["detail"]
