"""The control plane of E2B's API over plain HTTP: each field, path and filter, and clients that want the sandboxes of others."""

import base64
import hashlib
import json
import os
import signal
import ssl
import subprocess
import time
import urllib.parse
from contextlib import asynccontextmanager

import anyio
import engine
import httpx2 as httpx
import pytest
from certificates import certificate
from e2b_raw import Sandbox, Server
from faults import NO_POOL
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from operators import free_port
from server import BINARY, command, configuration, environment, instances, listening, tokens, until

pytestmark = pytest.mark.any_engine

UNKNOWN = "0123456789abcdef" * 2


class Owner:
    """A client with its token."""

    def __init__(self, url, token):
        self.token = token
        self.http = httpx.AsyncClient(base_url=url, headers={"X-API-KEY": token}, timeout=60)

    async def create(self, **fields):
        answer = await self.http.post("/v2/sandboxes", json={"templateID": "base", "timeout": 60} | fields)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def get(self, path, **parameters):
        return await self.http.get(path, params=parameters)

    async def post(self, path, **fields):
        return await self.http.post(path, json=fields)

    async def info(self, sandbox):
        answer = await self.get(f"/sandboxes/{sandbox['sandboxID']}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def ids(self, **parameters):
        answer = await self.get("/v2/sandboxes", **parameters)
        assert answer.status_code == 200, answer.text
        return [listed["sandboxID"] for listed in answer.json()]

    async def kill_all(self):
        for id in await self.ids():
            await self.http.delete(f"/sandboxes/{id}")


@asynccontextmanager
async def serving(folder, names=("ann", "ben"), **settings):
    """A server with tokens, and a client for each."""
    lines, secrets = tokens(*names)
    (folder / "tokens").write_text("".join(lines))
    http = settings.pop("http", {})
    settings = {"apis": {"e2b": {}}, "pool": NO_POOL, "http": {"tokens": "tokens", **http}} | settings
    with (folder / "log").open("w") as log:
        async with listening(folder, configuration(folder, **settings), log) as mcp:
            url = mcp.removesuffix("/mcp")
            owners = [Owner(url, secret) for secret in secrets]
            try:
                yield owners
            finally:
                for owner in owners:
                    await owner.http.aclose()


@pytest.fixture(scope="module")
async def owners(anyio_backend, tmp_path_factory):
    async with serving(tmp_path_factory.mktemp("e2b")) as owners:
        yield owners


@pytest.fixture
async def ann(owners):
    yield owners[0]
    await owners[0].kill_all()


def seconds_left(info):
    end = time.mktime(time.strptime(info["endAt"].split(".")[0], "%Y-%m-%dT%H:%M:%S")) - time.timezone
    return end - time.time()


def data(sandbox, **more):
    """The headers of a request to a sandbox."""
    return {"E2b-Sandbox-Id": sandbox["sandboxID"], "X-Access-Token": sandbox["envdAccessToken"]} | more


async def health(owner, headers):
    async with httpx.AsyncClient(base_url=owner.http.base_url, headers=headers) as http:
        return await http.get("/health")


async def test_a_sandbox_is_created_described_and_killed(ann):
    made = await ann.create(metadata={"a": "b"}, envVars={"X": "1"}, allow_internet_access=True, secure=True)
    assert set(made) == {
        "templateID",
        "sandboxID",
        "clientID",
        "envdVersion",
        "envdAccessToken",
        "trafficAccessToken",
        "domain",
    }
    assert made["domain"] is None and made["templateID"] == "base"
    info = await ann.info(made)
    assert info["state"] == "running" and info["metadata"] == {"a": "b"} and info["allowInternetAccess"] is False
    assert info["lifecycle"] == {"autoResume": False, "onTimeout": "kill"}
    assert info["cpuCount"] >= 1 and info["memoryMB"] > 0 and info["diskSizeMB"] > 0
    assert 50 < seconds_left(info) < 61
    assert (await health(ann, data(made))).status_code == 204
    killed = await ann.http.delete(f"/sandboxes/{made['sandboxID']}")
    assert (killed.status_code, killed.content) == (204, b"")
    for again in [await ann.http.delete(f"/sandboxes/{made['sandboxID']}"), await ann.get(f"/sandboxes/{UNKNOWN}")]:
        assert again.status_code == 404 and "was not found" in again.json()["message"]
    gone = await health(ann, data(made))
    assert gone.status_code == 502 and gone.headers["should-retry"] == "false"
    assert "was not found: it was closed" in gone.json()["message"]


async def test_a_timeout_is_an_end_and_no_idle_time(ann):
    made = await ann.create(timeout=2)
    for _ in range(20):
        if (answer := await health(ann, data(made))).status_code == 502:
            break
        await anyio.sleep(0.25)
    assert "timeout was reached" in answer.json()["message"]
    made = await ann.create(timeout=60)
    path = f"/sandboxes/{made['sandboxID']}"
    assert (await ann.post(f"{path}/timeout", timeout=300)).status_code == 204
    assert 290 < seconds_left(await ann.info(made)) < 301
    # Connecting and refreshing never shorten it.
    assert (await ann.post(f"/v2{path}/connect", timeout=10)).status_code == 200
    assert (await ann.post(f"{path}/refreshes", duration=10)).status_code == 204
    assert 290 < seconds_left(await ann.info(made)) < 301
    assert (await ann.post(f"{path}/connect", timeout=400)).json()["envdAccessToken"] == made["envdAccessToken"]
    assert 390 < seconds_left(await ann.info(made)) < 401
    assert (await ann.post(f"{path}/timeout", timeout=0)).status_code == 204
    await anyio.sleep(0.2)
    assert (await ann.get(path)).status_code == 404


async def test_a_paused_sandbox_is_gone_until_its_client_connects(ann):
    made = await ann.create()
    path = f"/sandboxes/{made['sandboxID']}"
    assert (await ann.post(f"{path}/resume")).status_code == 409
    assert (await ann.post(f"{path}/pause", memory=True)).status_code == 204
    assert (await ann.post(f"{path}/pause")).status_code == 409
    assert (await ann.info(made))["state"] == "paused"
    refused = await health(ann, data(made))
    assert refused.status_code == 502 and "was not found: it is paused" in refused.json()["message"]
    assert (await ann.post(f"{path}/timeout", timeout=10)).status_code == 409
    assert await ann.ids(state="paused") == [made["sandboxID"]] and await ann.ids(state="running") == []
    resumed = await ann.post(f"/v2{path}/connect", timeout=30)
    assert resumed.status_code == 201 and resumed.json()["envdAccessToken"] == made["envdAccessToken"]
    assert (await health(ann, data(made))).status_code == 204
    assert 20 < seconds_left(await ann.info(made)) < 31
    refused = await ann.post(f"{path}/pause", memory=False)
    assert refused.status_code == 400 and refused.json()["message"].startswith("memory: ")


@asynccontextmanager
async def started_process(ann, sandbox, script):
    """The stream of a process, after its first message."""
    start = {"process": {"cmd": "/bin/sh", "args": ["-c", script], "envs": {}}}
    body = json.dumps(start).encode()
    envelope = b"\0" + len(body).to_bytes(4, "big") + body
    headers = data(sandbox, **{"Content-Type": "application/connect+json"})
    async with (
        httpx.AsyncClient(base_url=ann.http.base_url, headers=headers, timeout=60) as http,
        http.stream("POST", "/process.Process/Start", content=envelope) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        pieces = answer.aiter_raw()
        assert b'"start"' in await anext(pieces)
        yield pieces


async def test_nothing_runs_in_a_paused_sandbox_and_its_streams_have_ended(ann):
    made = await ann.create()
    path = f"/sandboxes/{made['sandboxID']}"

    async def times():
        async with httpx.AsyncClient(base_url=ann.http.base_url, headers=data(made)) as http:
            answer = await http.get("/files", params={"path": "/tmp/times"})
            return [float(line) for line in answer.text.split()]

    script = "while sleep 0.05; do cut -d' ' -f1 /proc/uptime >> /tmp/times; done"
    async with started_process(ann, made, script) as pieces:
        await anyio.sleep(0.5)
        assert (await ann.post(f"{path}/pause")).status_code == 204
        with anyio.fail_after(10):
            rest = b"".join([piece async for piece in pieces])
        assert b"was not found" in rest
    await anyio.sleep(2)
    assert (await ann.post(f"{path}/connect", timeout=30)).status_code == 201
    with anyio.fail_after(10):
        while (seen := await times()) and seen[-1] - seen[0] < 2.5:
            await anyio.sleep(0.1)
    # The process has gone on after the pause, and it has not run during it.
    assert max(after - before for before, after in zip(seen, seen[1:], strict=False)) > 1.5


async def test_a_sandbox_pauses_at_its_timeout_and_goes_on_with_a_request(ann):
    made = await ann.create(timeout=1, autoPause=True)
    other = await ann.create(timeout=1, autoPause=True, autoResume={"enabled": True})
    await anyio.sleep(1.3)
    assert sorted(await ann.ids(state="paused")) == sorted([made["sandboxID"], other["sandboxID"]])
    assert (await health(ann, data(made))).status_code == 502
    # A request that knows only its id does not let it go on.
    assert (await health(ann, {"E2b-Sandbox-Id": other["sandboxID"]})).status_code == 502
    assert (await ann.info(other))["state"] == "paused"
    assert (await health(ann, data(other))).status_code == 204
    assert (await ann.info(other))["state"] == "running"


async def test_lists_are_filtered_ordered_and_in_pages(ann):
    made = [(await ann.create(metadata={"n": str(n), "a b": "c=d&e"}))["sandboxID"] for n in range(3)]
    assert await ann.ids() == made[::-1] and await ann.ids(order="asc") == made
    # Both SDKs encode them twice.
    twice = urllib.parse.urlencode({urllib.parse.quote("a b"): urllib.parse.quote("c=d&e"), "n": "1"})
    assert await ann.ids(metadata=twice) == [made[1]]
    assert await ann.ids(metadata="n=4") == []
    assert await ann.ids(template="base") == made[::-1] and await ann.ids(template="python") == []
    assert await ann.ids(startedAfter="2000-01-01T00:00:00+02:00") == made[::-1]
    assert await ann.ids(startedAfter="2100-01-01T00:00:00Z") == []
    for order in ["asc", "desc"]:
        token, seen = None, []
        for _ in range(3):
            page = await ann.get("/v2/sandboxes", limit=1, order=order, **({"nextToken": token} if token else {}))
            seen += [listed["sandboxID"] for listed in page.json()]
            token = page.headers.get("x-next-token")
        assert token is None and seen == (made if order == "asc" else made[::-1])
    # The place of a page holds even if its last sandbox has ended.
    page = await ann.get("/v2/sandboxes", limit=1, order="asc")
    await ann.http.delete(f"/sandboxes/{made[0]}")
    assert await ann.ids(order="asc", nextToken=page.headers["x-next-token"]) == made[1:]
    assert len((await ann.get("/sandboxes")).json()) == 2


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"templateID": None}, "templateID"),
        ({"templateID": 1}, "templateID"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": "60"}, "timeout"),
        ({"timeout": 10**9}, "timeout"),
        ({"timeout": 2**70}, "timeout"),
        ({"autoPause": "yes"}, "autoPause"),
        ({"autoPause": True, "autoPauseMemory": False}, "autoPauseMemory"),
        ({"autoResume": {"enabled": True}}, "autoResume.enabled"),
        ({"autoResume": {}}, "autoResume"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a": "x" * 20000}}, "metadata"),
        ({"metadata": {"isolator.packages": "nothing"}}, "metadata.isolator.packages"),
        ({"envVars": {"A=B": "1"}}, "envVars.A=B"),
        ({"envVars": {"A": "x" * 200_000}}, "envVars"),
        ({"envVars": ["A"]}, "envVars"),
        ({"volumeMounts": [{"name": "v", "path": "/v"}]}, "volumeMounts"),
        ({"mcp": {"exa": {}}}, "mcp"),
        ({"iam": {"tokens": {"a": {}}}}, "iam"),
        ({"network": {"allowOut": ["1.1.1.1"]}}, "network.allowOut"),
        ({"network": {"allowPublicTraffic": True}}, "network.allowPublicTraffic"),
        ({"network": {"egressProxy": {"address": "a:1"}}}, "network.egressProxy"),
        ({"network": {"rules": False}}, "network.rules"),
        ({"network": {"somethingNew": False}}, "network.somethingNew"),
        ({"autoResume": {"enabled": False, "somethingNew": 1}}, "autoResume.somethingNew"),
        ({"somethingNew": False}, "somethingNew"),
    ],
)
async def test_a_field_that_is_wrong_is_refused_with_its_name(ann, fields, named):
    answer = await ann.post("/v2/sandboxes", **({"templateID": "base"} | fields))
    assert answer.status_code == 400, answer.text
    assert answer.json()["message"].startswith(named) and answer.headers["should-retry"] == "false"
    assert await ann.ids() == []


async def test_fields_that_ask_for_nothing_are_accepted(ann):
    nothing = {"mcp": None, "iam": {}, "volumeMounts": [], "network": {"denyOut": ["0.0.0.0/0"]}}
    made = await ann.create(**nothing, autoPause=False, autoResume={"enabled": False}, allow_internet_access=False)
    assert await ann.ids() == [made["sandboxID"]]


async def test_bodies_parameters_and_templates_that_are_wrong_are_named(ann):
    for body in ["{", "[]", '{"templateID": "base"} x', '"base"', "\xff"]:
        answer = await ann.http.post("/v2/sandboxes", content=body.encode("latin-1"))
        assert answer.status_code == 400 and answer.json()["message"].startswith("body: "), body
    assert (await ann.http.post("/v2/sandboxes", content=b"x" * (2 << 20))).status_code == 413
    missing = await ann.post("/v2/sandboxes", templateID="nothing")
    assert missing.status_code == 404 and "code-interpreter-v1" in missing.json()["message"]
    async with httpx.AsyncClient(base_url=ann.http.base_url) as http:
        assert (await http.get("/v2/sandboxes?state=x")).status_code == 401
    for parameter in ["state=paused", "limit=1", "nextToken=1-a"]:
        answer = await ann.http.get(f"/sandboxes?{parameter}")
        assert answer.status_code == 400 and "/v2/sandboxes" in answer.json()["message"], parameter
    for parameter in ["state=x", "order=x", "limit=0", "limit=x", "nextToken=x", "startedAfter=x", "team=x"]:
        answer = await ann.http.get(f"/v2/sandboxes?{parameter}")
        assert answer.status_code == 400 and answer.json()["message"].startswith(parameter.split("=")[0]), parameter
    made = await ann.create()
    path = f"/sandboxes/{made['sandboxID']}"
    for call, fields, said in [
        ("timeout", {}, "timeout: is required"),
        ("timeout", {"timeout": -1}, "timeout: must be a whole number that is not negative, and is -1"),
        ("timeout", {"timeout": 9, "somethingNew": 1}, "somethingNew: is not a field of this request"),
        ("connect", {"timeout": "x"}, "timeout: must be a whole number"),
        ("connect", {"somethingNew": 1}, "somethingNew: "),
        ("resume", {"somethingNew": 1}, "somethingNew: "),
        ("refreshes", {"somethingNew": 1}, "somethingNew: "),
        ("pause", {"somethingNew": 1}, "somethingNew: "),
    ]:
        answer = await ann.post(f"{path}/{call}", **fields)
        assert answer.status_code == 400 and answer.json()["message"].startswith(said), (call, fields, answer.text)
    killing = await ann.http.request("DELETE", path, json={"somethingNew": 1})
    assert killing.status_code == 400 and killing.json()["message"].startswith("somethingNew: ")
    assert (await ann.get(f"{path}/metrics")).status_code == 200


async def test_other_paths_are_not_implemented_instead_of_not_found(ann):
    paths = [
        ("GET", "/templates"),
        ("POST", "/v3/templates"),
        ("GET", "/volumes"),
        ("GET", "/secrets"),
        ("GET", "/snapshots"),
        ("PATCH", "/v2/sandboxes"),
        ("PUT", f"/sandboxes/{UNKNOWN}"),
        ("PUT", f"/sandboxes/{UNKNOWN}/network"),
        ("POST", f"/sandboxes/{UNKNOWN}/fork"),
        ("POST", f"/sandboxes/{UNKNOWN}/snapshots"),
        ("GET", f"/sandboxes/{UNKNOWN}/logs"),
        ("GET", f"/sandboxes/{UNKNOWN}/connect"),
        ("GET", "/sandboxes/a/b/c"),
    ]
    for method, path in paths:
        answer = await ann.http.request(method, path)
        assert answer.status_code == 501 and answer.headers["should-retry"] == "false", (method, path, answer)
        body = answer.json()
        assert body["code"] == 501 and path in body["message"]
    assert "no network" in (await ann.http.put(f"/sandboxes/{UNKNOWN}/network")).json()["message"]


async def test_another_client_has_no_part_in_a_sandbox(owners, ann):
    ben = owners[1]
    made, own = await ann.create(), await ben.create()
    path = f"/sandboxes/{made['sandboxID']}"
    for answer in [
        await ben.get(path),
        await ben.http.delete(path),
        await ben.post(f"{path}/connect", timeout=10),
        await ben.post(f"{path}/timeout", timeout=0),
        await ben.post(f"{path}/pause"),
        await ben.get(f"{path}/metrics"),
    ]:
        assert answer.status_code == 404 and "you have none" in answer.json()["message"]
    assert await ben.ids() == [own["sandboxID"]]
    assert (await ann.info(made))["state"] == "running"
    await ben.kill_all()


async def test_requests_without_a_valid_token_are_refused(ann):
    made = await ann.create()
    for headers in [{}, {"X-API-KEY": "e2b_00"}, {"X-API-KEY": made["envdAccessToken"]}, {"Authorization": "Bearer x"}]:
        async with httpx.AsyncClient(base_url=ann.http.base_url, headers=headers) as http:
            for answer in [await http.get("/v2/sandboxes"), await http.delete(f"/sandboxes/{made['sandboxID']}")]:
                assert answer.status_code == 401 and "X-API-KEY" in answer.json()["message"]
    async with httpx.AsyncClient(base_url=ann.http.base_url) as http:
        bearer = await http.get("/v2/sandboxes", headers={"Authorization": f"Bearer {ann.token}"})
        assert bearer.status_code == 200


async def test_requests_to_a_sandbox_need_its_own_secret(owners, ann):
    made, other = await ann.create(), await ann.create()
    id, token, traffic = made["sandboxID"], made["envdAccessToken"], made["trafficAccessToken"]

    async def status(path, method="GET", **headers):
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with httpx.AsyncClient(base_url=ann.http.base_url, headers=names) as http:
            return (await http.request(method, path, json={} if method == "POST" else None)).status_code

    for path in ["/files?path=x", "/filesystem.Filesystem/Stat", "/process.Process/List", "/execute", "/contexts"]:
        method = "GET" if path.startswith("/files?") or path == "/contexts" else "POST"
        for wrong in [
            {},
            {"e2b_sandbox_id": id},
            {"e2b_sandbox_id": id, "x_access_token": other["envdAccessToken"]},
            {"e2b_sandbox_id": id, "x_access_token": token[:-1]},
            {"e2b_sandbox_id": id, "x_access_token": token.upper()},
            {"e2b_sandbox_id": id, "x_access_token": ""},
            {"e2b_sandbox_id": id, "x_access_token": ann.token},
            {"e2b_sandbox_id": id, "e2b_traffic_access_token": other["trafficAccessToken"]},
            {"x_access_token": "0" * 64},
        ]:
            assert await status(path, method, **wrong) == 401, (path, wrong)
        unknown = {"e2b_sandbox_id": UNKNOWN, "x_access_token": token}
        assert await status(path, method, **unknown) == 502
    # The traffic token is for code only.
    assert await status("/files?path=x", e2b_sandbox_id=id, e2b_traffic_access_token=traffic) == 401
    assert await status("/health", e2b_sandbox_id=id, e2b_sandbox_port="3000") == 502
    assert await status("/health", e2b_sandbox_id=id, e2b_sandbox_port="x") == 400
    # The secret alone names the sandbox.
    assert await status("/health", x_access_token=token) == 204
    assert await status("/health", x_access_token=traffic) == 401


def signed(sandbox, path, operation, user="", expires=None, method="GET"):
    """The query of a signed URL."""
    text = f"{path}:{operation}:{user}:{sandbox['envdAccessToken']}" + (f":{expires}" if expires else "")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    query = {"path": path, "signature": f"v1_{digest}"}
    query |= {"username": user} if user else {}
    return query | ({"signature_expiration": str(expires)} if expires else {})


async def test_a_signature_opens_one_path_for_one_operation_until_its_time(ann):
    made, other = await ann.create(), await ann.create()
    right = signed(made, "/home/user/a", "read")

    async def refusal(query, method="GET", headers=None):
        async with httpx.AsyncClient(base_url=ann.http.base_url) as http:
            answer = await http.request(method, "/files", params=query, headers=headers)
            return answer.status_code, answer.json()["message"]

    # It is let in, but there is no such file.
    assert (await refusal(right))[0] == 404
    assert (await refusal(right, headers={"E2b-Sandbox-Id": made["sandboxID"]}))[0] == 404
    assert (await refusal(signed(made, "a", "read", expires=int(time.time()) + 60)))[0] == 404
    for wrong in [
        right | {"path": "/etc/passwd"},
        right | {"username": "user"},
        right | {"signature": right["signature"][:-1]},
        right | {"signature_expiration": str(int(time.time()) + 9999)},
        signed(made, "/home/user/a", "write"),
        {"path": "/home/user/a"},
    ]:
        assert (await refusal(wrong))[0] == 401, wrong
    assert (await refusal(right, "POST"))[0] == 401
    assert (await refusal(right, headers={"E2b-Sandbox-Id": other["sandboxID"]}))[0] == 401
    # One secret that is wrong is not made good by another.
    assert (await refusal(right, headers={"X-Access-Token": "0" * 64}))[0] == 401
    status, message = await refusal(signed(made, "a", "read", expires=int(time.time()) - 1))
    assert status == 401 and "expired" in message
    async with httpx.AsyncClient(base_url=ann.http.base_url) as http:
        twice = await http.get(f"/files?{urllib.parse.urlencode(right)}&path=/etc/passwd")
        assert twice.status_code == 400 and "twice" in twice.json()["message"]


async def test_a_client_has_a_bounded_number_of_sandboxes_and_none_is_ended_for_another(tmp_path):
    async with serving(tmp_path, sessions={"max": 4, "maxPerClient": 2}) as (ann, _):
        made = [await ann.create() for _ in range(2)]
        refused = await ann.post("/v2/sandboxes", templateID="base")
        assert refused.status_code == 429 and "kill sandboxes" in refused.json()["message"]
        assert refused.headers["should-retry"] == "true" and refused.headers["retry-after"] == "30"
        assert sorted(await ann.ids()) == sorted(it["sandboxID"] for it in made)
        await ann.http.delete(f"/sandboxes/{made[0]['sandboxID']}")
        await ann.create()


async def test_sandboxes_and_sessions_are_listed_in_both_worlds(tmp_path):
    async with serving(tmp_path) as (ann, _):
        http = httpx.AsyncClient(headers={"Authorization": f"Bearer {ann.token}"})
        url = f"{str(ann.http.base_url).rstrip('/')}/mcp"
        async with Client(streamable_http_client(url, http_client=http)) as mcp:
            made = await ann.create()
            opened = await mcp.call_tool("open_session", {"language": "python"})
            session = opened.structured_content["session"]
            read = await mcp.read_resource("isolator://sessions")
            listed = json.loads(read.contents[0].text)
            assert {it["session"] for it in listed} == {made["sandboxID"], session}
            assert set(await ann.ids()) == {made["sandboxID"], session}
            # Its secrets are made when a client of E2B connects.
            assert (await health(ann, {"E2b-Sandbox-Id": session})).status_code == 401
            connected = (await ann.post(f"/v2/sandboxes/{session}/connect", timeout=5)).json()
            assert connected["templateID"] == "python"
            assert (await health(ann, data(connected))).status_code == 204
            # Connecting has not made its life shorter.
            assert seconds_left(await ann.info(connected)) > 60
            ran = await mcp.call_tool("execute_code", {"session": made["sandboxID"], "entrypoint_code": "print(6 * 7)"})
            assert "42" in ran.content[0].text
            assert (await ann.http.delete(f"/sandboxes/{session}")).status_code == 204
            again = await mcp.call_tool("execute_code", {"session": session, "entrypoint_code": "1"})
            assert again.is_error and "closed" in again.content[0].text
        await http.aclose()


async def test_names_below_the_domain_reach_sandboxes_and_nothing_else(tmp_path):
    folder = tmp_path
    certificate(folder, "sandbox.test", ["sandbox.test", "*.sandbox.test"])
    tls = {"certificate": "certificate.pem", "key": "key.pem"}
    async with serving(folder, apis={"e2b": {"domain": "sandbox.test"}}, http={"tls": tls}) as (ann, _):
        address = str(ann.http.base_url).rstrip("/")
        trusted = ssl.create_default_context(cafile=folder / "certificate.pem")

        async def request(method, host, path, headers=None, **more):
            sni = {"sni_hostname": host}
            headers = {"Host": host, **(headers or {})}
            async with httpx.AsyncClient(verify=trusted) as http:
                return await http.request(method, f"{address}{path}", headers=headers, extensions=sni, **more)

        key = {"X-API-KEY": ann.token}
        made = await request("POST", "api.sandbox.test", "/v2/sandboxes", key, json={"templateID": "base"})
        assert made.status_code == 201 and made.json()["domain"] == "sandbox.test"
        made = made.json()
        id = made["sandboxID"]
        assert (await request("GET", f"49983-{id}.sandbox.test", "/health")).status_code == 204
        assert (await request("GET", f"49983-{id}.sandbox.test", "/health", {"X-Access-Token": "x"})).status_code == 401
        unknown = await request("GET", f"49983-{UNKNOWN}.sandbox.test", "/health")
        assert unknown.status_code == 502 and "was not found" in unknown.json()["message"]
        query = signed(made, "a", "read")
        assert (await request("GET", f"49983-{id}.sandbox.test", "/files", params=query)).status_code == 404
        for path in ["/", "/index.html", "/health"]:
            closed = await request("GET", f"3000-{id}.sandbox.test", path)
            assert closed.status_code == 502 and "port is not open" in closed.json()["message"], path
        other = await request("GET", f"49983-{id}.sandbox.test", "/health", {"E2b-Sandbox-Id": UNKNOWN})
        assert other.status_code == 400
        assert (await request("GET", "api.sandbox.test", "/teams")).status_code == 501
        # These names are not for MCP, and no others are for sandboxes.
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        accept = {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {ann.token}"}
        assert (await request("POST", "api.sandbox.test", "/mcp", accept, json=message)).status_code == 403
        async with httpx.AsyncClient(verify=False) as http:
            for host in ["evil.test", f"a.49983-{id}.sandbox.test", "evilsandbox.test", "sandbox.test.evil.test"]:
                for path in ["/health", "/v2/sandboxes"]:
                    answer = await http.get(f"{address}{path}", headers={"Host": host, **key, **data(made)})
                    assert answer.status_code == 403, (host, path)


async def test_a_token_in_e2b_s_form_opens_everything_until_it_is_removed(tmp_path):
    made = subprocess.run([BINARY, "token", "--e2b", "old-sdk"], capture_output=True, text=True, check=True)
    secret = made.stderr.split()[made.stderr.split().index("again:") + 1]
    assert secret.startswith("e2b_") and set(secret[4:]) <= set("0123456789abcdef")
    async with serving(tmp_path) as (ann, _):
        lines = (tmp_path / "tokens").read_text()
        (tmp_path / "tokens").write_text(lines + made.stdout)
        old = Owner(str(ann.http.base_url), secret)
        sandbox = await old.create()
        assert (await health(ann, data(sandbox))).status_code == 204
        with pytest.raises(httpx.TransportError):
            async with started_process(old, sandbox, "sleep 100") as pieces:
                (tmp_path / "tokens").write_text(lines)
                # A stream that is open breaks off.
                with anyio.fail_after(10):
                    assert [piece async for piece in pieces] is None
        refused = await health(ann, data(sandbox))
        assert refused.status_code == 401 and "no valid token anymore" in refused.json()["message"]
        assert (await old.get("/v2/sandboxes")).status_code == 401
        await old.http.aclose()


async def test_sandboxes_stay_when_the_configuration_is_loaded_again(tmp_path):
    async with serving(tmp_path) as (ann, _):
        made = await ann.create()
        (instance,) = instances(tmp_path)
        pid = next(int(pid) for pid in os.listdir("/proc") if pid.isdigit() and started(pid, tmp_path))
        path = tmp_path / "config.json"
        config = json.loads(path.read_text())

        async def reload(apis):
            path.write_text(json.dumps(config | {"apis": apis}))
            os.kill(pid, signal.SIGHUP)

        await reload({})
        off = {}

        async def is_off():
            answer = await ann.get("/v2/sandboxes")
            off["message"] = answer.json()["message"] if answer.status_code == 404 else ""
            return answer.status_code == 404

        await eventually(is_off)
        assert '"apis": {"e2b": {}}' in off["message"]
        await reload({"e2b": {"templates": {"mine": {"language": "python"}}}})

        async def has_template():
            answer = await ann.post("/v2/sandboxes", templateID="mine")
            return answer.status_code == 201

        await eventually(has_template)
        assert (await health(ann, data(made))).status_code == 204
        assert (await ann.info(made))["state"] == "running"


async def test_clients_of_a_server_that_was_started_again_learn_that_all_sandboxes_are_gone(tmp_path):
    async with serving(tmp_path) as (ann, _):
        made = await ann.create()
    async with serving(tmp_path) as (again, _):
        asked = [await again.get(f"/sandboxes/{made['sandboxID']}"), await health(again, data(made))]
        assert [answer.status_code for answer in asked] == [404, 502]
        for answer in asked:
            message = answer.json()["message"]
            assert "was not found" in message and "started again" in message


async def test_samples_of_a_sandbox_that_runs_and_is_frozen(tmp_path):
    async with serving(tmp_path) as (ann, _):
        before = int(time.time())
        made = await ann.create()
        raw = Sandbox(Server(str(ann.http.base_url)), made["sandboxID"], made["envdAccessToken"])
        path = f"/sandboxes/{made['sandboxID']}/metrics"
        # It takes CPU time and 20 MiB of its disk for the first two samples.
        busy = "head -c 20M /dev/urandom > big; timeout 6 sh -c 'while :; do :; done'"
        assert (await anyio.to_thread.run_sync(raw.run, busy))[1]["exitCode"] == 124
        samples = (await ann.get(path)).json()
        assert len(samples) >= 2, samples
        for sample in samples:
            assert 0 < sample["memUsed"] <= sample["memTotal"] and sample["cpuCount"] > 0, sample
            assert before <= sample["timestampUnix"] <= time.time(), sample
        assert samples[-1]["cpuUsedPct"] > 20 and samples[-1]["diskUsed"] >= 20 << 20, samples

        (instance,) = instances(tmp_path)
        states = lambda: [sandbox.state for sandbox in engine.sandboxes(instance)]
        await until(lambda: states() == ["paused"], 20, "it is frozen")
        count = len(samples)
        while len(samples) == count:
            samples = (await ann.get(path)).json()
            assert states() == ["paused"]
            await anyio.sleep(0.2)
        assert samples[-1]["cpuUsedPct"] == 0 and samples[-1]["diskUsed"] >= 20 << 20, samples

        times = [sample["timestampUnix"] for sample in samples]
        some = await ann.get(path, start=times[1], end=times[1])
        assert [sample["timestampUnix"] for sample in some.json()] == [times[1]]
        assert (await ann.get(path, start=before - 3600, end=before - 1800)).json() == []
        listed = (await ann.get("/sandboxes/metrics", sandbox_ids=f"{made['sandboxID']},{UNKNOWN}")).json()
        assert listed["sandboxes"].keys() == {made["sandboxID"]}
        for wrong in ["?start=x", "?start=2&end=1", "?step=1"]:
            assert (await ann.http.get(f"{path}{wrong}")).status_code == 400, wrong


async def test_requests_are_in_the_audit_log_with_their_names(tmp_path):
    async with serving(tmp_path, audit={"path": str(tmp_path / "audit.jsonl")}) as (ann, _):
        made = await ann.create()
        path = f"/sandboxes/{made['sandboxID']}"
        await ann.post(f"{path}/pause")
        await ann.post(f"{path}/connect", timeout=20)
        await ann.http.delete(path)

        def lines():
            text = (tmp_path / "audit.jsonl").read_text()
            return [json.loads(line) for line in text.splitlines()]

        await until(lambda: len(lines()) == 4, 10, "four lines")
        names = ["e2b.create_sandbox", "e2b.pause_sandbox", "e2b.connect_sandbox", "e2b.kill_sandbox"]
        assert [line["tool"] for line in lines()] == names
        assert {line["client"] for line in lines()} == {"ann"}
        assert {line["status"] for line in lines()} == {"success"}
        assert made["sandboxID"] not in (tmp_path / "audit.jsonl").read_text()


def started(pid, folder):
    """Whether a process is the server with this configuration."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return str(folder / "config.json").encode() in words and b"serve" in words


async def eventually(condition, seconds=15):
    """Waits until a condition holds."""
    with anyio.fail_after(seconds):
        while not await condition():
            await anyio.sleep(0.1)
