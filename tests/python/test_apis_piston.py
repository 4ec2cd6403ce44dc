"""The API of Piston, as those who evaluate models use it: runtimes, and programs whose output is compared."""

import base64
import json
import re

import anyio
import apis
import pytest
from apis import MAX_OUTPUT, connected, judge_all, judged_by_piston, post, serving
from server import shared

pytestmark = pytest.mark.any_engine


@pytest.fixture(scope="module")
async def place(anyio_backend, tmp_path_factory):
    """A server that has the API, for the tests that need nothing else of it."""
    async with shared(serving(tmp_path_factory.mktemp("piston"), {"piston": {}})) as (place, _):
        yield place


def program(content, language="python", version="*", **more):
    return {"language": language, "version": version, "files": [{"content": content}], **more}


async def run(place, content, **more):
    answer = await post(place, "/api/v2/execute", program(content, **more))
    assert answer.status == 200, answer.body
    return answer.json


async def test_runtimes_have_the_names_and_versions_of_their_interpreters(place):
    async with connected(place) as connection:
        answer = await connection.get("/api/v2/runtimes")
        runtimes = {runtime["language"]: runtime for runtime in answer.json}
        assert set(runtimes) == {"python", "javascript", "typescript", "go"}
        assert runtimes["typescript"]["runtime"] == "node"
        assert all(re.fullmatch(r"\d+\.\d+\.\d+", runtime["version"]) for runtime in runtimes.values())
        # Each can be asked for by its name, its aliases, and its version or a part of that.
        version = runtimes["python"]["version"]
        major, minor, _ = version.split(".")
        request = program("import platform; print(platform.python_version())")
        for name in ["python", *runtimes["python"]["aliases"]]:
            for wanted in ["*", version, f"{major}.{minor}", f"{major}.x", f"^{major}.0.0", f">={version}"]:
                answer = await connection.post("/api/v2/execute", request | {"language": name, "version": wanted})
                assert answer.json["run"]["stdout"] == f"{version}\n", answer.body
                assert (answer.json["language"], answer.json["version"]) == ("python", version)


async def test_an_answer_has_all_fields_of_the_contract(place):
    text = "import sys\nprint(input(), sys.argv[1], flush=True)\nprint('e', file=sys.stderr)\nsys.exit(3)"
    answer = await post(place, "/api/v2/execute", program(text, stdin="a", args=["b"]))
    found = answer.json["run"]
    assert 0 < found.pop("wall_time") < 10_000 and 0 < found.pop("cpu_time") < 10_000
    memory = found.pop("memory")
    assert memory is None or memory > 1 << 20
    assert found == {"stdout": "a b\n", "stderr": "e\n", "output": "a b\ne\n", "code": 3, "signal": None}
    assert json.loads(answer.headers["isolator-receipt"])["ms"]["total"] > 0


@pytest.mark.parametrize(
    "text, code, signal, cause",
    [
        ("1 / 0", 1, None, None),
        ("while True: pass", None, "SIGKILL", r"timeout: still running after 1s .*run_timeout"),
        ("x = bytearray(1 << 30)", None, "SIGKILL", r"out_of_memory: .*run_memory_limit"),
        ("while True: print('x' * 1000)", None, "SIGKILL", "output_limit: it printed more than 10 MiB"),
        ("import os; os.kill(os.getpid(), 11)", None, "SIGSEGV", "error: killed by signal 11"),
    ],
)
async def test_the_last_line_of_standard_error_says_why_a_program_died(place, text, code, signal, cause):
    timeout = 1000 if cause and "timeout" in cause else 20_000
    found = (await run(place, text, run_timeout=timeout))["run"]
    assert (found["code"], found["signal"]) == (code, signal), found
    last = found["stderr"].splitlines()[-1]
    assert re.match(rf"\[isolator\] {cause}", last) if cause else not last.startswith("[isolator]"), found
    assert found["output"].splitlines()[-1] == last


async def test_all_that_a_program_prints_comes_back(place):
    size = MAX_OUTPUT - 1000
    found = (await run(place, f"print('x' * {size} + 'z')"))["run"]
    assert found["stdout"] == found["output"] == f"{'x' * size}z\n"


async def test_limits_of_a_request_hold(place):
    found = (await run(place, "x = bytearray(100 << 20)", run_memory_limit=64 << 20))["run"]
    assert found["signal"] == "SIGKILL" and "limit of 64 MiB" in found["stderr"]
    assert (await run(place, "x = bytearray(100 << 20)", run_memory_limit=-1))["run"]["code"] == 0
    found = (await run(place, "while True: pass", run_timeout=20_000, run_cpu_time=500))["run"]
    assert found["signal"] == "SIGXCPU" and found["cpu_time"] < 3000


async def test_files_have_names_and_encodings(place):
    text = b"import helper\nprint(helper.NAME, open('file2.code', 'rb').read())"
    files = [
        {"name": "start.py", "content": base64.b64encode(text).decode(), "encoding": "base64"},
        {"name": "helper.py", "content": b"NAME = __name__".hex(), "encoding": "hex"},
        {"content": "/w==", "encoding": "base64"},
    ]
    answer = await post(place, "/api/v2/execute", program("") | {"files": files})
    assert answer.json["run"]["stdout"] == "helper b'\\xff'\n", answer.body


@pytest.mark.parametrize(
    "language, text",
    [("js", "console.log(42)"), ("node", "console.log(42)"), ("ts", "const a: number = 42; console.log(a)"),
     ("golang", 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println(42) }\n')],
)  # fmt: skip
async def test_languages_have_aliases(place, language, text):
    found = await run(place, text, language=language)
    assert (found["run"]["stdout"], "compile" in found) == ("42\n", False), found


GOOD = program("pass")


@pytest.mark.parametrize(
    "change, said",
    [
        ({"language": None}, "language: "),
        ({"language": "cms_ioi"}, "use one of python, javascript, typescript, go"),
        ({"version": 3}, "version: "),
        ({"version": "2.7.18"}, "this server has 3."),
        ({"version": "latest"}, "version: \"latest\" is not a version"),
        ({"files": []}, "files: is empty"),
        ({"files": {}}, "files: "),
        ({"files": [{"name": "a"}]}, "files[0].content: is required"),
        ({"files": [{"content": 1}]}, "files[0].content: "),
        ({"files": [{"content": "", "encoding": "rot13"}]}, "files[0].encoding: "),
        ({"files": [{"content": "%", "encoding": "base64"}]}, "files[0].content: this is not base64"),
        ({"files": [{"content": "ff", "encoding": "hex"}]}, "files[0].content: the program must be text in UTF-8"),
        ({"files": [{"content": "0", "encoding": "hex"}]}, "files[0].content: this is not hexadecimal"),
        ({"files": [{"content": ""}, {"content": "%", "encoding": "base64"}]}, "files[1].content: this is not base64"),
        ({"files": [{"content": ""}, {"content": "x", "encoding": "hex"}]}, "files[1].content: this is not hexadecimal"),
        ({"files": [{"content": ""}, {"content": "", "name": "../a"}]}, "files[1].name: "),
        ({"files": [{"content": "", "name": "/etc/passwd"}]}, "files[0].name: "),
        ({"files": [{"content": "", "mode": 1}]}, "files[0].mode: "),
        ({"stdin": 1}, "stdin: "),
        ({"args": [1]}, "args[0]: "),
        ({"args": ["\0"]}, "args[0]: contains a NUL"),
        ({"compile_timeout": 0}, "compile_timeout: 0 is not allowed"),
        ({"run_timeout": -1}, "run_timeout: -1 is not allowed"),
        ({"run_timeout": 301_000}, "run_timeout: \"5m 1s\" is longer than the maximum of 5m"),
        ({"run_cpu_time": "1"}, "run_cpu_time: "),
        ({"language": "go", "compile_cpu_time": 1000}, "compile_cpu_time: can't be given without run_cpu_time"),
        ({"run_cpu_time": 0}, "run_cpu_time: 0 is not allowed"),
        ({"compile_memory_limit": -2}, "compile_memory_limit: -2 is not allowed"),
        ({"run_memory_limit": 0}, "run_memory_limit: 0 is not allowed"),
        ({"run_memory_limit": 1 << 40}, "use 16 MiB to 1 GiB"),
        ({"network": True}, "network: is not a field of this request"),
    ],
)  # fmt: skip
async def test_each_wrong_field_is_named(place, change, said):
    answer = await post(place, "/api/v2/execute", GOOD | change)
    assert (answer.status, set(answer.json)) == (400, {"message"}), answer.body
    assert said in answer.json["message"], answer.body


async def test_malformed_requests_are_refused_with_the_reason(place):
    async with connected(place) as connection:
        for body in [b"", b"{", b"[]", b"\xff"]:
            answer = await connection.post("/api/v2/execute", body)
            assert (answer.status, bool(answer.json["message"])) == (400, True), body
        answer = await connection.get("/api/v2/execute")
        assert (answer.status, "POST to /api/v2/execute" in answer.json["message"]) == (405, True)
        for path, status, said in [
            ("/api/v2/packages", 501, "no runtimes can be installed"),
            ("/api/v2/connect", 501, "/api/v2/execute"),
            ("/api/v2/elsewhere", 404, "/api/v2/runtimes"),
        ]:
            answer = await connection.post(path, {})
            assert (answer.status, said in answer.json["message"]) == (status, True), answer.body
    answer = await post(place, "/api/v2/execute", program("x" * (33 << 20)))
    assert (answer.status, "larger than 32 MiB" in answer.json["message"]) == (413, True)


async def test_each_verdict_on_a_batch_is_right(place):
    wrong, _ = await judge_all(place, judged_by_piston, apis.batch(200, seed=2), at_once=100)
    assert wrong == []


async def test_a_request_waits_no_longer_than_its_client(tmp_path):
    settings = {"requests": {"maxRunning": 1, "maxRunningPerClient": 1, "queueTimeout": "2m"}}
    async with serving(tmp_path, {"piston": {}}, **settings) as (place, _):
        # This finds out the version first.
        assert (await run(place, "pass"))["run"]["code"] == 0
        async with connected(place) as running:
            await running.begin("POST", "/api/v2/execute", program("import time; time.sleep(20)", run_timeout=25_000))
            await anyio.sleep(0.5)
            began = anyio.current_time()
            # Its client waits for 30 seconds, of which its program may need 27.
            answer = await post(place, "/api/v2/execute", program("pass", run_timeout=27_000))
            assert (answer.status, 1 < anyio.current_time() - began < 4) == (504, True), answer.body
            assert int(answer.headers["retry-after"]) >= 1 and "waited" in answer.json["message"]
