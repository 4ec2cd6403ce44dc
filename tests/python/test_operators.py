"""Metrics, health, log and audit log of a server."""

import hashlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter

import anyio
import httpx2 as httpx
import pytest
from by_hand import CLIENT, by_hand, post, python, request, run
from certificates import certificate
from disk import Disk
from e2b_raw import Server
from faults import NO_POOL, configuration
from operators import ANY_PORT, admin_of, another_place, asked, check, first_line, get, hanging, operated, prometheus, values
from server import BINARY, command, environment, listening, process_with, tokens, until

pytestmark = pytest.mark.any_engine

OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
STAGES = ["queue", "checkout", "limit", "unpack", "spawn", "program", "run"]


async def receipts(url, codes, at_once=4):
    """Runs programs, and returns the receipts of those that have one."""
    found, turns = [], anyio.Semaphore(at_once)

    async def one(number, code):
        async with turns:
            status, body = await run(url, number, code)
            assert status == 200, body
            answer = json.loads(body)["result"]
            found.append((answer["structuredContent"]["status"], answer["_meta"]["isolator/receipt"]))

    async with anyio.create_task_group() as tasks:
        for number, code in enumerate(codes):
            tasks.start_soon(one, number, code)
    return found


async def test_the_sums_of_a_prometheus_are_those_of_the_receipts(tmp_path):
    (tmp_path / "scraping").mkdir()
    async with operated(tmp_path, pool={"size": 3, "hot": 1}) as (url, admin, _):
        async with prometheus(tmp_path / "scraping", admin) as scraping:
            codes = ["print(1)", "raise SystemExit(3)", "import time; time.sleep(0.2)"] * 12
            found = await receipts(url, codes)
            count = len(codes)
            name = "isolator_executions_total"
            await until(lambda: scraping.sum(name) >= count, 30, "a scrape after the last call")

            by_start = Counter((receipt["start"], status) for status, receipt in found)
            scraped = scraping.query(f"sum by (start, status) ({name}) > 0")
            assert {tuple(dict(labels)[key] for key in ("start", "status")): value for labels, value in scraped} == by_start

            for stage in STAGES:
                seconds = sum(receipt["ms"][stage] for _, receipt in found) / 1000
                total = scraping.sum(f'isolator_stage_seconds_total{{language="python",stage="{stage}"}}')
                # A receipt is rounded to the microsecond.
                assert total == pytest.approx(seconds, abs=1e-6 * count), stage
            seconds = sum(receipt["ms"]["total"] for _, receipt in found) / 1000
            assert scraping.sum("isolator_execution_seconds_sum") == pytest.approx(seconds, abs=1e-6 * count)
            assert scraping.sum("isolator_execution_seconds_count") == count

            calls = 'mcp_server_operation_duration_seconds_count{gen_ai_tool_name="execute_code"}'
            assert scraping.sum(calls) == count
            failed = sum(status != "success" for status, _ in found)
            assert scraping.sum(calls.replace("}", ',error_type="tool_error"}')) == failed
            assert scraping.sum("isolator_queue_wait_seconds_count") == count
            made = scraping.sum('isolator_sandboxes_made_total{pool="python"}')
            assert made >= count and scraping.sum("isolator_refill_seconds_count") == pytest.approx(made, abs=3)
            assert scraping.sum("isolator_sandboxes_removed_total") > 0
            assert scraping.sum('isolator_engine_calls_total{call="create"}') >= count
            assert scraping.sum('isolator_engine_call_errors_total{call=~"create|arm|remove"}') == 0
            (labels, one), *more = scraping.query("isolator_build_info")
            assert one == 1 and not more and set(dict(labels)) == {"version", "engine"}


async def test_both_formats_are_accepted_and_no_client_chooses_a_label(tmp_path):
    async with operated(tmp_path, pool={"size": 1, "hot": 1}) as (url, admin, _):
        for code in ("print(1)", "raise ValueError"):
            await run(url, 1, code)
        message = python(2, "", language="chosen_language")
        message["params"]["name"] = "chosen_tool"
        await post_any(url, message)
        status, kind, plain = await asked(f"{admin}/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        code, said = check(plain)
        assert (code, said) == (0, ""), said
        assert "chosen" not in plain
        found = values(plain)
        unknown = [name for name in found if name.startswith("mcp_server") and 'gen_ai_tool_name="_OTHER"' in name]
        assert unknown and found['isolator_executions_total{language="python",start="hot",status="success"}'] <= 1
        bounds = re.findall(r'isolator_execution_seconds_bucket\{.*le="([^"]+)"\}', plain)
        assert float(bounds[0]) == 0.0005

        status, kind, text = await asked(f"{admin}/metrics", accept=OPEN_METRICS)
        assert (status, kind) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
        assert text.endswith("# EOF\n") and "# TYPE isolator_executions counter" in text
        # The memory of what waits takes a while to look up, so a later scrape has it.
        memory = 'isolator_waiting_memory_bytes{pool="python"}'

        def is_there():
            return values(get(f"{admin}/metrics")[2]).get(memory, 0) > 0

        await until(is_there, 30, "the memory of what waits")


async def post_any(url, message):
    """Sends a call that may be wrong."""
    message["params"]["_meta"] = CLIENT
    return await post(url, json.dumps(message).encode(), name=message["params"]["name"])


async def test_operators_can_ask_a_server_on_standard_input(tmp_path):
    config = configuration(tmp_path, pool=NO_POOL, admin={"address": ANY_PORT})
    path = tmp_path / "log"
    with path.open("w") as log:
        async with by_hand(tmp_path, config, log) as server:
            admin = await admin_of(path.read_text)
            assert (await asked(f"{admin}/healthz"))[::2] == (200, "ok\n")
            assert (await asked(f"{admin}/readyz"))[::2] == (200, "ready\n")
            assert (await asked(f"{admin}/x"))[0] == 404
            await server.begin()
            await server.send(request("alive", "ping"), request("wrong", "tools/call", {"name": 7}))
            await server.all_answers(["alive", "wrong"], 30)
            found = values(get(f"{admin}/metrics")[2])
            counted = [name for name in found if name.startswith("mcp_server_operation_duration_seconds_count")]
            for label in ('mcp_method_name="initialize"', 'mcp_method_name="ping"', 'gen_ai_tool_name="_OTHER"'):
                assert [found[name] for name in counted if label in name] == [1], (label, found)
            await server.send(python(1, "import time; time.sleep(3)"))
            await until(lambda: values(get(f"{admin}/metrics")[2])["isolator_running_requests"] == 1, 30, "a call that runs")
            os.kill(server.pid, signal.SIGTERM)
            await until(lambda: get(f"{admin}/readyz")[0] == 503, 5, "a server that takes no more calls")
            status, _, text = get(f"{admin}/readyz")
            assert (status, text) == (503, "the server is shutting down\n")


async def test_a_server_is_not_ready_before_it_has_sandboxes(tmp_path):
    # An image that is not there, and is not made.
    languages = {"python": {"enabled": True, "image": "isolator/none:nowhere"}}
    async with operated(tmp_path, languages=languages, pool={"size": 1, "hot": 0}) as (_, admin, _):
        status, _, text = await asked(f"{admin}/readyz")
        assert (status, text) == (503, "no sandbox is ready for python\n")
        assert (await asked(f"{admin}/healthz"))[0] == 200
        failing = 'isolator_pool_failing{pool="python"}'
        await until(lambda: values(get(f"{admin}/metrics")[2])[failing] == 1, 30, "a pool that says that it fails")


def refused(tmp_path, *arguments, **settings):
    """The output of a server that does not start."""
    config = configuration(tmp_path, pool=NO_POOL, **settings)
    done = subprocess.run(
        [*command(config), *arguments],
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 125, done
    return done.stderr


def test_an_impossible_listener_is_refused_at_startup(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments in ([], ["--http", "127.0.0.1:0"]):
            said = refused(tmp_path, "--admin", str(port), *arguments)
            assert f"can't listen on 127.0.0.1:{port}" in said and "in use" in said, said
            said = refused(tmp_path, *arguments, admin={"address": f"127.0.0.1:{port}"})
            assert f"can't listen on 127.0.0.1:{port}" in said, said
    said = refused(tmp_path, "--admin", "0.0.0.0:0")
    assert "other machines can reach 0.0.0.0:0" in said and "admin.tokens" in said, said
    said = refused(tmp_path, admin={"address": ANY_PORT, "tokens": "nowhere"})
    assert "admin.tokens" in said and "nowhere" in said, said


async def test_with_tokens_only_operators_are_answered(tmp_path):
    tokens = {}
    for name in ("operators", "clients", "metrics"):
        made = subprocess.run([BINARY, "token", name], capture_output=True, check=True, text=True)
        (tmp_path / name).write_text(made.stdout)
        tokens[name] = re.search(r"isolator_[0-9a-f]{64}", made.stderr)[0]
    admin = {"address": "0.0.0.0:0", "tokens": "operators", "metricsTokens": "metrics"}
    async with operated(tmp_path, pool=NO_POOL, admin=admin, http={"tokens": "clients"}) as (url, admin, _):
        place = admin.replace("0.0.0.0", "127.0.0.1")
        for headers, expected in [
            ({}, 401),
            ({"authorization": f"Bearer {tokens['clients']}"}, 401),
            ({"authorization": f"Bearer {tokens['operators']}"}, 200),
            # Any host name: tokens are enough.
            ({"authorization": f"Bearer {tokens['operators']}", "host": "server.example"}, 200),
        ]:
            assert (await asked(f"{place}/metrics", **headers))[0] == expected, headers
        assert (await asked(f"{place}/readyz"))[0] == 200
        # The token for metrics reads these, and nothing else; it is no token of a client either.
        reader = {"authorization": f"Bearer {tokens['metrics']}"}
        assert (await asked(f"{place}/metrics", **reader))[0] == 200
        for method, path in [("GET", "/status"), ("GET", "/status.json"), ("POST", "/drain"), ("POST", "/reload"), ("GET", "/metrics/")]:
            answer = httpx.request(method, f"{place}{path}", headers=reader)
            assert (answer.status_code, "only read /metrics" in answer.text) == (403, True), (path, answer.text)
        assert httpx.post(url, headers=reader, json={}).status_code == 401
        assert (await asked(f"{place}/readyz"))[0] == 200
        # A token that is removed is refused from then on.
        (tmp_path / "metrics").write_text((tmp_path / "clients").read_text())
        assert (await asked(f"{place}/metrics", **reader))[0] == 401


async def test_a_listener_with_a_certificate_is_asked_by_its_name(tmp_path):
    made = subprocess.run([BINARY, "token", "operator"], capture_output=True, check=True, text=True)
    (tmp_path / "operators").write_text(made.stdout)
    (tmp_path / "token").write_text(re.search(r"isolator_[0-9a-f]{64}", made.stderr)[0])
    certificate(tmp_path, "server.example", names=["localhost"])
    names = {"certificate": str(tmp_path / "certificate.pem"), "key": str(tmp_path / "key.pem")}
    settings = {"admin": {"address": "0.0.0.0:0", "tokens": "operators"}, "http": {"tls": names}}
    # The address for clients is one of this machine, which has the certificate, too.
    async with operated(tmp_path, pool=NO_POOL, **settings) as (_, admin, _):
        port = admin.rpartition(":")[2]

        async def ask(command, host, *arguments):
            arguments = [command, f"{host}:{port}", "--token-file", str(tmp_path / "token"), *arguments]
            done = await anyio.run_process([BINARY, *arguments], cwd=tmp_path, check=False)
            return done.returncode, done.stdout.decode(), done.stderr.decode()

        trusted = ["--ca-file", names["certificate"]]
        code, said, _ = await ask("status", "https://localhost", *trusted)
        assert code == 0 and said.startswith("isolator "), said
        assert (await ask("reload", "https://localhost", *trusted))[0] == 0
        # No authority that this machine trusts has signed it; it is not for that name; and without TLS there is no answer.
        for host, arguments, expected in [
            ("https://localhost", [], "certificate"),
            ("https://127.0.0.1", trusted, "certificate"),
            ("127.0.0.1", [], "no answer"),
            ("127.0.0.1", trusted, "--ca-file is for a listener with TLS"),
            ("https://localhost", ["--ca-file", str(tmp_path / "key.pem")], "certificates in PEM"),
        ]:
            code, said, complained = await ask("status", host, *arguments)
            assert (code, said) == (125, "") and expected in complained, (host, arguments, complained)


async def test_a_web_page_can_not_read_under_its_own_name(tmp_path):
    async with operated(tmp_path, pool=NO_POOL) as (_, admin, _):
        assert (await asked(f"{admin}/metrics", host="evil.example"))[0] == 403
        assert (await asked(f"{admin}/metrics", host="localhost"))[0] == 200


async def test_scrapes_that_hang_cost_nothing(tmp_path):
    async with operated(tmp_path, pool=NO_POOL) as (url, admin, said):
        with hanging(admin, 34):
            began = time.monotonic()
            status, _ = await run(url, 1, "print(1)")
            assert status == 200 and time.monotonic() - began < 10
            await until(lambda: "there are too many connections" in said(), 5, "a line about it")
            # They are cut, and then there is room again.
            await until(lambda: _is_answered(admin), 40, "an answer")


def _is_answered(admin):
    try:
        return get(f"{admin}/metrics")[0] == 200
    except OSError:
        return False


async def test_one_address_can_not_take_all_connections(tmp_path):
    made = subprocess.run([BINARY, "token", "operator"], capture_output=True, check=True, text=True)
    (tmp_path / "operators").write_text(made.stdout)
    admin = {"address": "0.0.0.0:0", "tokens": "operators"}
    async with operated(tmp_path, pool=NO_POOL, admin=admin) as (_, admin, said):
        port = int(admin.rpartition(":")[2])

        def status(source):
            connection = http.client.HTTPConnection(source, port, timeout=10, source_address=(source, 0))
            try:
                connection.request("GET", "/healthz")
                return connection.getresponse().status
            except OSError:
                return None
            finally:
                connection.close()

        with hanging(f"http://127.0.0.1:{port}", 8):
            await until(lambda: status("127.0.0.2") != 200, 10, "a place with too many connections")
            assert await anyio.to_thread.run_sync(status, another_place()) == 200
            assert "too many connections" in said()


async def test_the_log_can_be_json(tmp_path):
    config = configuration(tmp_path, pool=NO_POOL)
    path = tmp_path / "log"
    with path.open("w") as log:
        arguments = [*command(config), "--log-format", "json", "--http", "127.0.0.1:0"]
        process = await anyio.open_process(arguments, env=environment(tmp_path), stdin=subprocess.DEVNULL, stderr=log)
        async with process:
            await until(lambda: '"url"' in path.read_text(), 30, "a server that listens")
            process.terminate()
            assert await process.wait() == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all({"timestamp", "level", "target", "message"} <= set(line) for line in lines), lines
    (listens,) = [line for line in lines if line["message"] == "listening"]
    assert listens["url"].startswith("http://127.0.0.1:") and listens["level"] == "INFO"


def audited(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_call_has_a_line_in_the_audit_log(tmp_path):
    path = tmp_path / "audit.jsonl"
    settings = {"audit": {"path": "audit.jsonl"}, "results": {"detachAfter": "500ms"}}
    config = configuration(tmp_path, pool=NO_POOL, **settings)
    with (tmp_path / "log").open("w") as log:
        async with by_hand(tmp_path, config, log) as server:
            await server.begin()
            files = [{"filename": "a.csv", "content": "MSwyCg==", "encoding": "base64"}]
            code = "import sys; print('secret' * 3); sys.exit(3)"
            await server.send(python(1, code, additional_files=files, memory_mb=64, timeout="5s"))
            await server.send(python(2, "x", language="nonsense"))
            await server.send(python(3, "import time; time.sleep(2)"))
            await server.all_answers([1, 2, 3], 30)
            # The third is answered, and its program still runs.
            await until(lambda: len(audited(path)) == 2, 1, "the lines of the others")
            assert {line["status"] for line in audited(path)} == {"error", "invalid_arguments"}
            await until(lambda: len(audited(path)) == 3, 30, "a line when the program has ended")
    lines = {line["status"]: line for line in audited(path)}
    assert set(lines) == {"error", "invalid_arguments", "success"}, lines
    one = lines["error"]
    assert (one["client"], one["tool"], one["language"], one["start"]) == ("host", "execute_code", "python", "cold")
    assert one["code_sha256"] == hashlib.sha256(code.encode()).hexdigest() and "code" not in one
    assert one["files"] == [{"name": "a.csv", "sha256": hashlib.sha256(b"1,2\n").hexdigest(), "bytes": 4}]
    assert one["limits"] == {"timeout_ms": 5000, "memory_mb": 64, "cpus": 0.5}
    assert len(one["pool"]["depths"]) == 1 and "pool" not in lines["invalid_arguments"], lines
    assert one["bytes"] == {"code": len(code), "files": 4, "stdout": 19, "stderr": 0, "returned": 0}
    assert "secret" not in path.read_text() and path.stat().st_mode & 0o777 == 0o600
    assert lines["success"]["ms"] > 1900


async def test_a_rotated_audit_log_is_created_again_at_a_signal(tmp_path):
    path = tmp_path / "audit.jsonl"
    settings = {"audit": {"path": "audit.jsonl"}, "pool": NO_POOL}
    async with listening(tmp_path, configuration(tmp_path, **settings), (tmp_path / "log").open("w")) as url:
        await run(url, 1, "print(1)")
        await until(lambda: len(audited(path)) == 1, 10, "a line")
        path.rename(tmp_path / "moved")
        server = process_with(f"XDG_STATE_HOME={tmp_path}")
        for _ in range(1000):
            os.kill(server, signal.SIGHUP)
        await until(path.exists, 10, "a new file")
        await run(url, 2, "print(1)")
        await until(lambda: len(audited(path)) == 1, 10, "a line in it")
    assert len(audited(tmp_path / "moved")) == 1


@pytest.mark.parametrize("on_full_disk", ["continue", "refuse"])
async def test_a_full_disk_is_handled_as_configured(tmp_path, on_full_disk):
    disk = Disk(tmp_path / "disk", 32 << 20)
    try:
        path = disk.directory / "audit.jsonl"
        audit = {"path": str(path), "onFullDisk": on_full_disk}
        async with operated(tmp_path, pool=NO_POOL, audit=audit, apis={"e2b": {}}) as (url, admin, said):
            await run(url, 1, "print(1)")
            await until(lambda: path.exists() and len(audited(path)) == 1, 10, "a line")
            sandbox = await anyio.to_thread.run_sync(Server(url).create)
            with disk.full():
                # A line may still fit behind the last one.
                for _ in range(60):
                    await run(url, 2, "print(2)")
                    if values(get(f"{admin}/metrics")[2])["isolator_audit_failing"]:
                        break
                assert values(get(f"{admin}/metrics")[2])["isolator_audit_failing"] == 1
                assert "the audit log can't be written" in said()
                _, body = await run(url, 3, "print('ran')")
                answer = json.loads(body)["result"]
                assert ("ran" in answer["content"][0]["text"]) == (on_full_disk == "continue"), answer
                assert (answer.get("isError") is True) == (on_full_disk == "refuse"), answer
                for method in ["filesystem.Filesystem/MakeDir", "filesystem.Filesystem/Stat"]:
                    status, made = await anyio.to_thread.run_sync(sandbox.rpc, method, {"path": "/home/user/made"})
                    assert (status == 200) == (on_full_disk == "continue"), made
                    assert on_full_disk == "continue" or "audit log" in made["message"], made
                status, _, text = get(f"{admin}/readyz")
                state, first = json.loads(get(f"{admin}/status.json")[2]), first_line(admin)
                assert str(path) not in text
                if on_full_disk == "refuse":
                    assert (status, text) == (503, "the audit log can't be written, so every call is refused\n")
                    assert first.startswith("NOT READY: the audit log can't be written") and str(path) in first, first
                    assert state["not_ready"] and not state["warnings"], state
                else:
                    assert (status, text) == (200, "ready\n")
                    assert re.match(r"WARNING: the audit log .* lines are lost \([1-9]\d* since", first) and str(path) in first, first
                    assert state["warnings"] and not state["not_ready"], state

            async def is_served():
                _, body = await run(url, 4, "print('ran')")
                return "ran" in json.loads(body)["result"]["content"][0]["text"]

            with anyio.fail_after(20):
                while not await is_served():
                    await anyio.sleep(0.2)
            await until(lambda: values(get(f"{admin}/metrics")[2])["isolator_audit_failing"] == 0, 10, "a log that is written")
            assert get(f"{admin}/readyz")[0] == 200 and first_line(admin).startswith("isolator ")
            lost = values(get(f"{admin}/metrics")[2])["isolator_audit_lines_lost_total"]
            assert (lost > 0) == (on_full_disk == "continue"), lost
        assert all(line["status"] == "success" for line in audited(path))
    finally:
        disk.close()


async def test_a_new_audit_log_that_others_can_read_is_not_used_and_reported(tmp_path):
    path = tmp_path / "audit.jsonl"
    async with operated(tmp_path, pool=NO_POOL, audit={"path": "audit.jsonl"}) as (url, admin, said):

        def lost():
            return values(get(f"{admin}/metrics")[2])["isolator_audit_lines_lost_total"]

        await run(url, 1, "print(1)")
        await until(lambda: path.exists() and len(audited(path)) == 1, 10, "a line")
        # As logrotate does with `create 0640`.
        path.rename(tmp_path / "audit.jsonl.1")
        path.touch(mode=0o640)
        await run(url, 2, "print(2)")
        await until(lambda: lost() == 1, 10, "a line that is lost")
        why = f"{path}: others than its owner can read or write it, so run `chmod 600` on it"
        assert f"path={path}" in said() and "so lines are lost" in said(), said()
        assert first_line(admin) == f"WARNING: the audit log can't be written, so its lines are lost (1 since the start): {why}"
        path.chmod(0o600)
        await until(lambda: first_line(admin).startswith("isolator "), 10, "a log that is written again")
        await run(url, 3, "print(3)")
        await until(lambda: len(audited(path)) == 1, 10, "a line in the new file")
        assert lost() == 1 and len(audited(tmp_path / "audit.jsonl.1")) == 1


async def test_a_removed_log_file_is_reported_to_operators(tmp_path):
    config = configuration(tmp_path, pool=NO_POOL, admin={"address": ANY_PORT})
    path = tmp_path / "log"
    with path.open("w") as log:
        async with by_hand(tmp_path, config, log):
            admin = await admin_of(path.read_text)
            # As logrotate does, which then compresses it.
            path = path.rename(tmp_path / "log.1")
            assert first_line(admin).startswith("isolator ")
            path.unlink()
            assert first_line(admin).startswith("WARNING: the file of the log was removed, so its lines are lost"), first_line(admin)


async def test_a_server_that_refuses_every_request_is_not_ready(tmp_path):
    lines, _ = tokens("ci")
    file = tmp_path / "tokens"
    file.write_text(lines[0])
    async with operated(tmp_path, pool=NO_POOL, http={"tokens": "tokens"}) as (url, admin, _):
        for text, reason, detail in [
            ("nonsense", "the file of tokens can't be used, so every request is refused", f"{file}, line 1"),
            (f"{lines[0].strip()} expires=2020-01-01T00:00:00Z", "all tokens have expired, so every request is refused", str(file)),
        ]:
            file.write_text(text)
            for place in (admin, url.removesuffix("/mcp")):
                assert get(f"{place}/readyz")[::2] == (503, f"{reason}\n")
            assert first_line(admin).startswith(f"NOT READY: {reason}: {detail}"), first_line(admin)
            file.write_text(lines[0])
            assert get(f"{admin}/readyz")[0] == 200 and first_line(admin).startswith("isolator ")


def test_an_unwritable_audit_log_is_refused_at_startup(tmp_path):
    said = refused(tmp_path, audit={"path": "/nowhere/audit.jsonl"})
    assert "audit.path: /nowhere/audit.jsonl can't be written" in said, said
