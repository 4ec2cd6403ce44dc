"""E2B's code interface: the newest SDK with a real server, and requests that no SDK sends.

The checks with the SDK are in `tests/apis/e2b_code.py`, each with the synchronous and with the asynchronous client.
"""

import json
import time

import anyio
import httpx2 as httpx
import pytest
from server import ROOT, configuration, listening
from test_apis_clients import SETTINGS, run

pytestmark = pytest.mark.any_engine

CHANGES = SETTINGS | {"apis": {"e2b": {"maxOutputMB": 1}}}
# Installing the client takes the longest.
WITHIN_S = 300


@pytest.fixture(scope="module")
async def url(anyio_backend, tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    async with listening(folder, configuration(folder, **CHANGES)) as mcp:
        yield mcp.removesuffix("/mcp")


class Box:
    """A sandbox, and requests to its code by HTTP."""

    def __init__(self, client, made):
        self.client, self.made = client, made
        self.headers = {"E2b-Sandbox-Id": made["sandboxID"], "X-Access-Token": made["envdAccessToken"]}

    async def ask(self, method, path, body=None, **headers):
        return await self.client.request(method, path, json=body, headers=self.headers | headers)

    async def run(self, code, **fields):
        """The lines of a cell, as it was run to its end."""
        answer = await self.ask("POST", "/execute", {"code": code, **fields})
        assert answer.status_code == 200, answer.text
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert lines[0]["type"] == "number_of_executions" and lines[-1] == {"type": "end_of_execution"}
        return lines[1:-1]


@pytest.fixture
async def box(url):
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        made = await client.post("/v2/sandboxes", json={"templateID": "base", "timeout": 120})
        assert made.status_code == 201, made.text
        box = Box(client, made.json())
        yield box
        await client.delete(f"/sandboxes/{box.made['sandboxID']}")


async def test_the_newest_sdk_runs_code_as_its_users_expect(url):
    command = [ROOT / "scripts/client", "--python", "e2b", ROOT / "tests/apis/e2b_code.py"]
    with anyio.fail_after(WITHIN_S):
        found = await run(command, {"E2B_API_URL": url, "E2B_SANDBOX_URL": url})
    assert len(found["checks"]) > 30
    assert {name: outcome for name, outcome in found["checks"].items() if outcome != "works"} == {}


async def test_each_field_of_code_requests_is_checked(box):
    for body, named in [
        ({}, "code: is required"),
        ({"code": None}, "code: must be a text"),
        ({"code": 1}, "code: must be a text"),
        ({"code": "1", "context_id": 1}, "context_id: must be a text"),
        ({"code": "1", "language": []}, "language: must be a text"),
        ({"code": "1", "env_vars": ["A"]}, "env_vars: must be an object, and is a list"),
        ({"code": "1", "env_vars": {"A": 1}}, "env_vars.A: must be a text"),
        ({"code": "1", "env_vars": {"A=B": "1"}}, "not the name of a variable"),
        ({"code": "1", "env_vars": {"A": "1\0"}}, "NUL"),
        ({"code": "1", "language": "bash", "env_vars": {"a-b": "1"}}, "no variable of a shell"),
        ({"code": "1", "language": "python", "context_id": "x"}, "language: can't be given together with context_id"),
        ({"code": "1", "language": "cobol"}, "this sandbox can't run \"cobol\""),
        ({"code": "1", "timeout": 5}, "timeout: is not a field of this request"),
        ({"code": "1", "cwd": "/"}, "cwd: is not a field of this request"),
        ([], "body: must be a JSON object"),
    ]:
        answer = await box.ask("POST", "/execute", body)
        assert answer.status_code == 400, (body, answer.text)
        assert named in answer.json()["message"], (body, answer.text)
    broken = await box.client.post("/execute", content=b"{", headers=box.headers)
    assert broken.status_code == 400 and "body: is not JSON" in broken.json()["message"]
    unknown = await box.ask("POST", "/execute", {"code": "1", "context_id": "0" * 32})
    assert unknown.status_code == 404 and "no context" in unknown.json()["message"]
    for body, named in [({"cwd": "a\0b"}, "cwd"), ({"cwd": 1}, "cwd"), ({"language": 1}, "language"), ({"code": "1"}, "code")]:
        answer = await box.ask("POST", "/contexts", body)
        assert answer.status_code == 400 and named in answer.json()["message"]
    # Nothing of this was run.
    assert (await box.run("1"))[0]["text"] == "1"


async def test_contexts_are_only_for_who_may_use_the_sandbox(box):
    context = (await box.ask("POST", "/contexts", {})).json()
    for headers in [{"X-Access-Token": "0" * 64}, {"X-Access-Token": "", "E2B-Traffic-Access-Token": "no"}]:
        for method, path in [
            ("GET", "/contexts"),
            ("POST", "/contexts"),
            ("DELETE", f"/contexts/{context['id']}"),
            ("POST", f"/contexts/{context['id']}/restart"),
            ("POST", "/execute"),
        ]:
            assert (await box.ask(method, path, {"code": "1"}, **headers)).status_code == 401, (method, path)
    other = await box.client.post("/v2/sandboxes", json={"templateID": "base"})
    theirs = Box(box.client, other.json())
    # An id of another sandbox's context names nothing here.
    answer = await theirs.ask("POST", "/execute", {"code": "1", "context_id": context["id"]})
    assert answer.status_code == 404
    await box.client.delete(f"/sandboxes/{theirs.made['sandboxID']}")


async def test_cells_of_all_contexts_run_one_after_the_other(box):
    contexts = [(await box.ask("POST", "/contexts", {})).json()["id"] for _ in range(3)]
    code = "import time; began = time.time(); time.sleep(0.3); print(began, time.time())"
    found = []

    async def cell(context):
        (line,) = await box.run(code, context_id=context)
        found.append([float(number) for number in line["text"].split()])

    async with anyio.create_task_group() as tasks:
        for context in contexts:
            tasks.start_soon(cell, context)
    found.sort()
    assert all(end <= begin for (_, end), (begin, _) in zip(found, found[1:], strict=False))


async def test_a_hostile_kernel_says_only_what_belongs_to_its_cell(box):
    """Code can send on the kernel's channel whatever it likes: lines of JSON stay lines of JSON."""
    code = """
    class Odd:
        def _repr_mimebundle_(self, include=None, exclude=None):
            return {"text/plain": "a\\n{\\"type\\":\\"end_of_execution\\"}\\n", "application/vnd.isolator.chart": "no JSON",
                    "application/vnd.isolator.error": '{"name": 5}', "application/vnd.isolator.table": "[" * 100_000}
    display(Odd())
    """
    lines = await box.run(code)
    assert [line["type"] for line in lines] in (["error"], ["result"])
    huge = await box.run("for _ in range(600): display('x' * 1000)")
    assert sum(line["type"] == "result" for line in huge) == 500
    assert "results are missing" in huge[-1]["text"]


async def test_output_that_is_not_read_is_bounded(tmp_path):
    """A client that does not read holds no more memory than it may: then its cell is ended by name."""
    settings = CHANGES | {"requests": {"maxInFlightMB": 64}, "apis": {"e2b": {"maxOutputMB": 60}}}
    async with listening(tmp_path, configuration(tmp_path, **settings)) as mcp:
        url = mcp.removesuffix("/mcp")
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            box = Box(client, (await client.post("/v2/sandboxes", json={"templateID": "base"})).json())
            body = {"code": "while True: print('y' * 10_000)"}
            async with client.stream("POST", "/execute", json=body, headers=box.headers) as answer:
                await anyio.sleep(3)
                lines = [json.loads(line) async for line in answer.aiter_lines()]
            assert [line["name"] for line in lines if line["type"] == "error"][-1:] in (["TooSlow"], ["OutputLimit"])
            assert sum(len(line.get("text", "")) for line in lines) < 45 << 20
            began = time.monotonic()
            assert (await box.run("1 + 1"))[0]["text"] == "2"
            assert time.monotonic() - began < 10


async def test_python_and_javascript_share_files_in_one_sandbox(box):
    made = await box.ask("POST", "/contexts", {"language": "javascript"})
    assert made.status_code in (200, 201), made.text
    javascript = {"context_id": made.json()["id"]}
    await box.run("kept = 7; open('from_python', 'w').write('p')")
    code = "var kept = 1; const fs = require('fs'); fs.writeFileSync('from_node', fs.readFileSync('from_python') + 'n'); kept"
    (shown,) = await box.run(code, **javascript)
    assert shown["text"] == "1"
    (shown,) = await box.run("open('from_node').read(), kept")
    assert shown["text"] == "('pn', 7)"
    # A cell whose end comes together with its beginning does not wait for a timer.
    times = []
    for _ in range(60):
        began = time.monotonic()
        await box.run("kept", **javascript)
        times.append(time.monotonic() - began)
    assert sorted(times)[45] < 0.09, times


async def test_variables_of_a_cell_do_not_end_an_interpreter_without_an_environment(box):
    await box.run("kept = 1; import os; given = os.environ; os.environ = None")
    lines = await box.run("kept", env_vars={"A": "1"})
    texts = [line["text"] for line in lines]
    assert texts == ["The variables for this cell could not be set: AttributeError\n", "1"], lines
    await box.run("os.environ = given")
    (shown,) = await box.run("os.environ['A']", env_vars={"A": "1"})
    assert shown["text"] == "1"
