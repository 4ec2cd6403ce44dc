"""The API of SandboxFusion, as trainers use it: programs whose output is compared, in batches, and cells."""

import base64
import json
import os
import re

import anyio
import apis
import pytest
from apis import MAX_OUTPUT, connected, judge_all, judged_by_fusion, post, serving
from operators import free_port
from server import ROOT, shared, tokens, until

pytestmark = pytest.mark.any_engine

BUSY = {"requests": {"maxRunning": 1, "maxRunningPerClient": 1, "maxQueue": 1}}


@pytest.fixture(scope="module")
async def place(anyio_backend, tmp_path_factory):
    """A server that has the API, for the tests that need nothing else of it."""
    context = serving(tmp_path_factory.mktemp("fusion"), {"sandboxFusion": {}}, audit={"path": "audit.jsonl"})
    async with shared(context) as (place, _):
        yield place


def code(code, language="python", **more):
    return {"code": code, "language": language, **more}


def in_base64(text):
    return base64.b64encode(text.encode()).decode()


async def run(place, text, **more):
    answer = await post(place, "/run_code", code(text, **more))
    assert answer.status == 200, answer.body
    return answer.json


async def test_an_answer_has_all_fields_of_the_contract(place):
    answer = await post(place, "/run_code", code("import sys\nprint(input(), sys.argv[1])", stdin="a", args=["b"]))
    found = answer.json
    time = found["run_result"].pop("execution_time")
    assert 0 < time < 10
    run_result = {"status": "Finished", "return_code": 0, "stdout": "a b\n", "stderr": ""}
    assert found == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": run_result,
        "executor_pod_name": None,
        "files": {},
    }
    receipt = json.loads(answer.headers["isolator-receipt"])
    assert receipt["ms"]["total"] > 0 and receipt["start"] in ("hot", "warm", "queued", "cold")


@pytest.mark.parametrize(
    "text, status, return_code, cause",
    [
        ("import sys; sys.exit(3)", "Finished", 3, None),
        ("1 / 0", "Finished", 1, None),
        ("while True: pass", "TimeLimitExceeded", None, r"timeout: still running after 1s .*run_timeout"),
        ("x = bytearray(1 << 30)", "Finished", 137, r"out_of_memory: the memory limit of 256 MiB .*memory_limit_MB"),
        ("while True: print('x' * 1000)", "Finished", 137, r"output_limit: it printed more than 10 MiB"),
        ("import os; os.kill(os.getpid(), 11)", "Finished", 139, r"error: killed by signal 11 \(SIGSEGV\)"),
        ("print('no end', end='')\nopen('/tmp/x', 'wb').write(bytes(1 << 27))", "Finished", 1, "error: the disk limit"),
    ],
)
async def test_the_last_line_of_standard_error_says_why_a_program_died(place, text, status, return_code, cause):
    found = await run(place, text, run_timeout=1 if status == "TimeLimitExceeded" else 20)
    result = found["run_result"]
    assert (found["status"], result["status"], result["return_code"]) == ("Failed", status, return_code)
    last = (result["stderr"].splitlines() or [""])[-1]
    assert re.match(rf"\[isolator\] {cause}", last) if cause else not last.startswith("[isolator]"), result


async def test_all_that_a_program_prints_comes_back(place):
    size = MAX_OUTPUT - 1000
    found = await run(place, f"print('é' + 'x' * {size} + 'z')")
    assert found["run_result"]["stdout"] == f"é{'x' * size}z\n"
    found = await run(place, "import sys; sys.stdout.buffer.write(b'\\xff\\x00a')")
    assert found["run_result"]["stdout"] == "\ufffd\x00a"


async def test_files_come_and_go(place):
    files = {"data/a.txt": in_base64("a"), "none.txt": None, "/workspace/b.txt": in_base64("b")}
    text = "import os\nos.mkdir('out')\n"
    text += "open('out/[c].txt', 'w').write(open('data/a.txt').read() + open('b.txt').read())\nprint(os.path.exists('none.txt'))"
    wanted = ["out/[c].txt", "/workspace/out/[c].txt", "./out/[c].txt", "out/*", "missing"]
    found = await run(place, text, files=files, fetch_files=wanted)
    assert found["run_result"]["stdout"] == "False\n"
    assert found["files"] == dict.fromkeys(wanted[:3], in_base64("ab"))
    assert '"out/*"' in found["message"] and '"missing"' in found["message"]


@pytest.mark.parametrize("language, text", [("nodejs", "console.log(6 * 7)"), ("javascript", "console.log(42)"),
                                            ("typescript", "const a: number = 42; console.log(a)"),
                                            ("go", 'package main\nfunc main() { println("x"); print() }\n')])  # fmt: skip
async def test_languages_have_the_names_that_clients_know(place, language, text):
    found = await run(place, text, language=language)
    assert (found["status"], found["compile_result"]) == ("Success", None), found


GOOD = code("pass")


@pytest.mark.parametrize(
    "change, field, said",
    [
        ({"code": None}, "code", "must be a text"),
        ({"code": 1}, "code", "must be a text"),
        ({"language": 1}, "language", "must be a text"),
        ({"language": "racket"}, "language", "use one of go, javascript, nodejs, python, typescript"),
        ({"language": "python2"}, "language", "use one of"),
        ({"compile_timeout": "10"}, "compile_timeout", "must be a number, and is the text"),
        ({"compile_timeout": 0}, "compile_timeout", "above zero"),
        ({"run_timeout": -1}, "run_timeout", "above zero"),
        ({"run_timeout": 301}, "run_timeout", "maximum of 5m"),
        ({"run_timeout": 1e300}, "run_timeout", "above zero"),
        ({"memory_limit_MB": 1.5}, "memory_limit_MB", "must be a whole number"),
        ({"memory_limit_MB": 0}, "memory_limit_MB", "use 16 MiB to 1 GiB"),
        ({"memory_limit_MB": -2}, "memory_limit_MB", "-1"),
        ({"memory_limit_MB": 4096}, "memory_limit_MB", "use 16 MiB to 1 GiB"),
        ({"stdin": 5}, "stdin", "must be a text"),
        ({"files": []}, "files", "must be an object"),
        ({"files": {"a": "%%"}}, "files.a", "not base64"),
        ({"files": {"../a": ""}}, "files.../a", "inside"),
        ({"files": {"/etc/passwd": ""}}, "files./etc/passwd", ""),
        ({"files": {"main.py": ""}}, "files.main.py", "twice"),
        ({"files": {"a": 1}}, "files.a", "must be a text"),
        ({"fetch_files": "a"}, "fetch_files", "must be a list"),
        ({"fetch_files": ["../a"]}, "fetch_files[0]", "working directory"),
        ({"fetch_files": ["a"] * 33}, "fetch_files", "32"),
        ({"args": "a"}, "args", "must be a list"),
        ({"args": ["a\0"]}, "args[0]", "NUL"),
        ({"network": True}, "network", "is not a field of this request"),
    ],
)
async def test_each_wrong_field_of_a_program_is_named(place, change, field, said):
    await assert_invalid(place, "/run_code", GOOD | change, field, said)


@pytest.mark.parametrize(
    "change, field, said",
    [
        ({"cells": "1"}, "cells", "must be a list"),
        ({"cells": [1]}, "cells[0]", "must be a text"),
        ({"cells": ["1"] * 1001}, "cells", "1000"),
        ({"cell_timeout": -1}, "cell_timeout", "above zero"),
        ({"cell_timeout": 400, "total_timeout": 900}, "cell_timeout", "maximum of 5m"),
        ({"total_timeout": 0}, "total_timeout", "above zero"),
        ({"kernel": "ir"}, "kernel", "python3"),
        ({"fetch_files": ["a"] * 33}, "fetch_files", "32"),
        ({"files": {"../a": ""}}, "files.../a", ""),
        ({"code": "1"}, "code", "is not a field of this request"),
    ],
)
async def test_each_wrong_field_of_cells_is_named(place, change, field, said):
    await assert_invalid(place, "/run_jupyter", {"cells": ["1"]} | change, field, said)


async def assert_invalid(place, path, request, field, said):
    answer = await post(place, path, request)
    assert answer.status == 422, answer.body
    (detail,) = answer.json["detail"]
    assert detail["loc"] == ["body", field], detail
    assert said in detail["msg"], detail


async def test_malformed_requests_are_refused_with_the_reason(place):
    async with connected(place) as connection:
        for body in [b"", b"{", b"[]", b'"x"', b'{"code": "\\ud800", "language": "python"}', b"\xff", json.dumps(GOOD).encode() + b"x"]:
            answer = await connection.post("/run_code", body)
            assert (answer.status, bool(answer.json["detail"][0]["msg"])) == (422, True), body
        answer = await connection.get("/run_code")
        assert (answer.status, answer.json["detail"]) == (405, "send POST to /run_code and /run_jupyter")
        answer = await connection.post("/submit", {})
        assert (answer.status, "use /run_code and /run_jupyter" in answer.json["detail"]) == (404, True)
    answer = await post(place, "/run_code", code("x" * (33 << 20)))
    assert (answer.status, "larger than 32 MiB" in answer.json["detail"]) == (413, True)
    answer = await post(place, "/run_code", GOOD, host="evil.example")
    assert (answer.status, "http.allowedHosts" in answer.json["detail"]) == (403, True)
    answer = await post(place, "/run_code", GOOD, origin="https://evil.example")
    assert answer.status == 403


async def test_cells_run_one_after_the_other_until_one_takes_too_long_or_dies(place):
    cells = ["a = 123", "a", "print(a)", "raise RuntimeError('why')", "open('x.txt', 'w').write('y'); None"]
    answer = await post(place, "/run_jupyter", {"cells": cells, "fetch_files": ["x.txt"]})
    found = answer.json
    assert (found["status"], found["driver"]["return_code"], found["files"]) == ("Success", 0, {"x.txt": in_base64("y")})
    assert [cell["stdout"] for cell in found["cells"]] == ["", "", "123\n", "", ""]
    assert found["cells"][1]["display"] == [{"text/plain": "123"}]
    # The media types are those of a notebook's kernel.
    cells = ["[1]", "import pandas\npandas.DataFrame({'a': [1]})"]
    shown = [cell["display"] for cell in (await post(place, "/run_jupyter", {"cells": cells})).json["cells"]]
    assert [[set(thing) for thing in things] for things in shown] == [[{"text/plain"}], [{"text/plain", "text/html"}]], shown
    (error,) = found["cells"][3]["error"]
    assert (error["ename"], error["evalue"], error["traceback"][-1]) == ("RuntimeError", "why", "RuntimeError: why")
    assert found["cells"][3]["stderr"] == ""
    assert "isolator-receipt" in answer.headers
    for cell, status, return_code, cause in [
        ("while True: pass", "TimeLimitExceeded", None, "timeout: "),
        ("x = bytearray(1 << 30)", "Finished", 137, "out_of_memory: "),
        ("import os; os._exit(3)", "Finished", 3, "error: the interpreter has ended"),
        ("import os; os._exit(0)", "Finished", 0, "error: the interpreter has ended"),
    ]:
        found = (await post(place, "/run_jupyter", {"cells": ["1", cell, "2"], "cell_timeout": 1})).json
        driver = found["driver"]
        assert (found["status"], driver["status"], driver["return_code"]) == ("Failed", status, return_code), found
        assert len(found["cells"]) == 2 and f"[isolator] {cause}" in found["cells"][1]["stderr"], found
    began = anyio.current_time()
    found = (await post(place, "/run_jupyter", {"cells": ["import time; time.sleep(60)"] * 2, "total_timeout": 1})).json
    assert found["driver"]["status"] == "TimeLimitExceeded" and anyio.current_time() - began < 10


async def test_names_of_the_same_file_and_things_shown_are_bounded_together(place):
    """What comes back of a request is bounded, however many names a file has, and however many cells show something."""
    cells = ["open('a', 'wb').write(bytes(6 << 20)); None"]
    cells += ["display({'application/json': [0] * 1_000_000, 'text/plain': 'x'}, raw=True)"] * 10
    names = ["a", "./a", ".//a", "/workspace/a"]
    found = (await post(place, "/run_jupyter", {"cells": cells, "fetch_files": names})).json
    assert list(found["files"]) == ["a"] and found["message"].count("too large") == 3
    shown = [thing for cell in found["cells"] for thing in cell["display"]]
    whole = [thing for thing in shown if "application/json" in thing]
    assert 1 < len(whole) < 10 and whole[0]["application/json"] == [0] * 1_000_000


async def test_a_cell_that_fails_after_it_has_shown_too_much_has_failed(place):
    cells = ["for i in range(501): display(i)\n1 / 0", "1 / 0"]
    full, next_ = (await post(place, "/run_jupyter", {"cells": cells})).json["cells"]
    assert (full["error"][0]["ename"], len(full["display"])) == ("Error", 500), full["error"]
    assert "had shown too much" in full["error"][0]["evalue"]
    assert next_["error"][0]["ename"] == "ZeroDivisionError"


async def test_no_session_of_cells_is_left(tmp_path):
    apis_, settings = {"sandboxFusion": {}}, {"sessions": {"max": 1}}
    async with serving(tmp_path, apis_, **settings) as (place, _):
        for _ in range(3):
            assert (await post(place, "/run_jupyter", {"cells": ["1"]})).json["status"] == "Success"
        async with connected(place) as connection:
            await connection.begin("POST", "/run_jupyter", {"cells": ["import time; time.sleep(60)"]})
            await anyio.sleep(1)
        # The client is gone, and so is its session, which was the only one that can be open.
        with anyio.fail_after(10):
            while (await post(place, "/run_jupyter", {"cells": ["1"]})).status != 200:
                await anyio.sleep(0.2)


async def test_each_verdict_on_a_batch_is_right(place):
    wrong, _ = await judge_all(place, judged_by_fusion, apis.batch(200), at_once=100)
    assert wrong == []


async def test_the_official_sdk_works(place):
    variables = os.environ | {"SANDBOX_FUSION_ENDPOINT": "http://%s:%d" % place}
    with anyio.fail_after(600):
        result = await anyio.run_process([str(ROOT / "scripts/client"), "sandbox_fusion"], check=False, env=variables)
    assert result.returncode == 0, result.stderr.decode()
    found = json.loads(result.stdout)
    assert set(found["checks"].values()) == {"works"}, found
    page = (ROOT / "docs/sandbox-fusion.md").read_text()
    assert all(version in page for version in found["versions"].values())


async def test_an_api_that_is_off_says_how_to_turn_it_on(tmp_path):
    async with serving(tmp_path, {}) as (place, _):
        for path, key, field in [
            ("/run_code", "sandboxFusion", "detail"),
            ("/run_jupyter", "sandboxFusion", "detail"),
            ("/api/v2/execute", "piston", "message"),
            ("/api/v2/no/such/path", "piston", "message"),
            ("/sandboxes", "e2b", "message"),
        ]:
            answer = await post(place, path, {})
            assert (answer.status, f'"apis": {{"{key}": {{}}}}' in answer.json[field]) == (404, True), answer.body
        assert b"/mcp" in (await post(place, "/elsewhere", {})).body


async def test_only_named_addresses_need_no_token(tmp_path):
    lines, (one, other) = tokens("one", "other")
    (tmp_path / "tokens").write_text("".join(lines))
    http = {"tokens": "tokens"}
    on = {"sandboxFusion": {"openTo": ["192.0.2.0/24"]}, "piston": {"openTo": ["127.0.0.0/8", "::1"]}}
    execute = {"language": "python", "version": "*", "files": [{"content": "pass"}]}
    async with serving(tmp_path, on, http=http, audit={"path": "audit.jsonl"}) as (place, _):
        async with connected(place) as connection:
            answer = await connection.post("/run_code", GOOD)
            assert answer.status == 401 and "apis.sandboxFusion.openTo" in answer.json["detail"], answer.body
            assert answer.headers["www-authenticate"] == 'bearer realm="isolator"'
            answer = await connection.post("/run_code", GOOD, authorization=f"Bearer {one}")
            assert answer.status == 200
            answer = await connection.post("/run_code", GOOD, x_api_key=other)
            assert answer.status == 200
            answer = await connection.post("/api/v2/execute", execute)
            assert answer.status == 200
            # A token that is sent has to be one.
            for path, request in [("/run_code", GOOD), ("/api/v2/execute", execute)]:
                answer = await connection.post(path, request, authorization="Bearer x")
                assert (answer.status, b"not known" in answer.body) == (401, True)
        path = tmp_path / "audit.jsonl"
        await until(lambda: path.read_text().count("\n") >= 3, 5, "the lines of the audit log")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    found = {(line["client"], line["tool"], line["status"]) for line in found if line["client"] != "the server"}
    assert found == {
        ("one", "sandbox_fusion.run_code", "success"),
        ("other", "sandbox_fusion.run_code", "success"),
        ("127.0.0.1", "piston.execute", "success"),
    }


async def test_a_full_queue_is_answered_so_that_clients_try_again(tmp_path):
    async with serving(tmp_path, {"sandboxFusion": {}}, **BUSY) as (place, _):
        answers = []

        async def one(**headers):
            answers.append(await post(place, "/run_code", code("import time; time.sleep(2)"), **headers))

        async def two():
            # A load balancer, which would try another server after this status.
            await one(isolator_not_run="status")

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(one)
            await anyio.sleep(0.5)
            tasks.start_soon(two)
        (of_balancer,) = [answer for answer in answers if answer.status == 503]
        assert of_balancer.headers["isolator-outcome"] == "not-run" and int(of_balancer.headers["retry-after"]) >= 1
        busy = [answer for answer in answers if answer.status == 504]
        assert len(busy) == 4 and {answer.status for answer in answers} == {200, 503, 504}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in busy)
        assert all("1 are waiting" in answer.json["detail"] for answer in busy)


async def test_a_client_that_goes_away_takes_its_program_along(tmp_path):
    async with serving(tmp_path, {"sandboxFusion": {}}, **BUSY) as (place, _):
        async with connected(place) as connection:
            await connection.begin("POST", "/run_code", code("import time; time.sleep(60)", run_timeout=100))
            await anyio.sleep(1)
        began = anyio.current_time()
        assert (await run(place, "print(1)"))["status"] == "Success"
        assert anyio.current_time() - began < 6
        # One that has closed only its sending side is answered, if that does not take long.
        async with connected(place) as connection:
            await connection.begin("POST", "/run_code", code("import time; time.sleep(0.5); print(2)"))
            await connection.stream.send_eof()
            assert (await connection.answer()).json["run_result"]["stdout"] == "2\n"


async def test_requests_are_counted_by_their_answers(tmp_path):
    port = free_port()
    async with serving(tmp_path, {"sandboxFusion": {}}, admin={"address": f"127.0.0.1:{port}"}) as (place, _):
        await post(place, "/run_code", GOOD)
        await post(place, "/run_code", code("1", language="racket"))
        async with connected(("127.0.0.1", port)) as connection:
            metrics = (await connection.get("/metrics", connection="close")).body.decode()
    for status in [200, 422]:
        labels = f'http_request_method="POST",http_route="/run_code",http_response_status_code="{status}"'
        assert f"http_server_request_duration_seconds_count{{{labels}}} 1" in metrics, metrics
