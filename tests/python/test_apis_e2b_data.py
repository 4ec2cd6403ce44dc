"""Processes and files of E2B's sandboxes: with the newest SDK, and with requests that no SDK sends."""

import base64
import contextlib
import gzip
import hashlib
import http.client
import json
import os
import socket
import threading
import time
import urllib.parse

import pytest
from anyio import to_thread
from e2b_raw import END, Server, encoded, envelope
from server import ROOT, configuration, listening, process_with
from test_apis_clients import FOLDER, KEY, run

SETTINGS = {"sessions": {"memoryMB": 8192}, "requests": {"maxRunning": 8}}
START, CONNECT = "process.Process/Start", "process.Process/Connect"


@pytest.fixture(scope="module")
async def served(anyio_backend, tmp_path_factory):
    folder = tmp_path_factory.mktemp("e2b_data")
    audit = {"path": str(folder / "audit.jsonl")}
    async with listening(folder, configuration(folder, apis={"e2b": {}}, audit=audit, **SETTINGS)) as mcp:
        yield mcp.removesuffix("/mcp"), folder


@pytest.fixture(scope="module")
def api(served):
    return Server(served[0])


@pytest.fixture
async def sandbox(api):
    sandbox = await to_thread.run_sync(api.create)
    yield sandbox
    await to_thread.run_sync(sandbox.kill)


async def in_thread(function, *arguments, **named):
    return await to_thread.run_sync(lambda: function(*arguments, **named))


async def test_the_newest_sdk_does_all_that_it_can_with_processes_and_files(served):
    variables = {"E2B_API_URL": served[0], "E2B_SANDBOX_URL": served[0], "E2B_API_KEY": KEY}
    found = await run([ROOT / "scripts/client", "--python", "e2b", FOLDER / "e2b_data.py"], variables)
    assert found["checks"]
    assert {name: outcome for name, outcome in found["checks"].items() if outcome != "works"} == {}


# Processes


async def test_a_command_prints_and_ends(sandbox):
    output, end = await in_thread(sandbox.run, "echo out; exit 7")
    assert (output, end["exitCode"], end["exited"], end["status"]) == (b"out\n", 7, True, "exit status 7")
    output, end = await in_thread(sandbox.run, "kill -9 $$")
    assert (end["exitCode"], end["exited"], end["error"]) == (-1, False, "signal: killed")


async def test_envelopes_that_break_the_protocol_are_refused_with_the_reason(sandbox):
    command = {"process": {"cmd": "/bin/true"}}
    for body, headers, says in [
        (b"", {}, "no message"),
        (b"\0\0\0", {}, "3 of the 5"),
        (envelope(command, length=1000), {}, "of the 1000 bytes"),
        (envelope(command, length=0xFFFFFFFF), {}, "4294967295"),
        (envelope(command, length=3), {}, "JSON"),
        (envelope(command, flags=0x80), {}, "0x80"),
        (envelope(command, flags=1), {}, "Connect-Content-Encoding"),
        (envelope(command) * 2, {}, "more than one"),
        (envelope(b"\xff\xfe"), {}, "JSON"),
        (envelope(b"[" * 90_000), {}, "JSON"),
        (envelope(b"[" * 110_000), {}, "100000 keys and values"),
        (envelope(gzip.compress(b" " * (17 << 20)), flags=1), {"Connect_Content_Encoding": "gzip"}, "can have"),
        (envelope(b"no gzip", flags=1), {"Connect_Content_Encoding": "gzip"}, "decompressed"),
        (envelope({}), {}, "process.cmd"),
        (envelope({"process": {"cmd": "/no/such/program"}}), {}, "can't be started"),
        (envelope({"process": {"cmd": "/bin/true", "cwd": "/no/such/folder"}}), {}, "/no/such/folder"),
        (envelope({"process": {"cmd": "/bin/true", "args": ["a\0b"]}}), {}, "zero byte"),
        (envelope({"process": {"cmd": "/bin/true", "envs": {"A=": ""}}}), {}, "process.envs"),
        (envelope({"process": {"cmd": "/bin/true"}, "pty": {"size": {"rows": -1}}}), {}, "JSON"),
    ]:
        messages, end = await in_thread(sandbox.stream, START, body, **headers)
        assert messages == []
        assert end["error"]["code"] in ("invalid_argument", "resource_exhausted"), end
        assert says in end["error"]["message"], (says, end)
    assert (await in_thread(sandbox.rpc, "process.Process/List", {}))[1] == {"processes": []}


async def test_requests_in_other_forms_are_refused_with_the_reason(sandbox):
    for headers, status, says in [
        ({"Content_Type": "application/proto"}, 400, "application/json"),
        ({"Content_Type": "application/connect+json"}, 400, "application/json"),
        ({"Connect_Protocol_Version": "2"}, 400, "version 1"),
        ({"Connect_Timeout_Ms": "0"}, 400, "milliseconds"),
        ({"Connect_Timeout_Ms": "x"}, 400, "milliseconds"),
        ({"Keepalive_Ping_Interval": "-1"}, 400, "seconds"),
        ({"Content_Encoding": "br"}, 501, "gzip"),
        ({"Authorization": "Basic " + encoded(b"root:")}, 400, "root"),
        ({"Authorization": "Basic ???"}, 400, "base64"),
    ]:
        found, body = await in_thread(sandbox.rpc, "process.Process/List", {}, **headers)
        assert (found, says in body["message"]) == (status, True), (headers, found, body)
    assert (await in_thread(sandbox.rpc, "process.Process/List", {}, Authorization="Basic " + encoded(b"user:")))[0] == 200
    for method, path in [
        ("POST", "/process.Process/NoSuch"),
        ("POST", "/filesystem.Filesystem/NoSuch"),
        ("GET", "/process.Process/List"),
        ("DELETE", "/files"),
        ("GET", "/envs"),
        ("POST", "/init"),
        ("GET", "/metrics"),
    ]:
        assert (await in_thread(sandbox.request, method, path))[0] == 501, path


async def test_input_in_odd_base64_is_read_or_refused(sandbox):
    def check():
        with sandbox.streaming(START, sandbox.start("cat", stdin=True)) as stream:
            pid = stream.started()
            process = {"pid": pid}
            for text in ["+/8=", "+/8", "-_8=", "-_8"]:
                answer = sandbox.rpc("process.Process/SendInput", {"process": process, "input": {"stdin": text}})
                assert answer == (200, {}), answer
            for wrong in ["a", "é", "====", "+_8=", "YQ==YQ==", 7, ["YQ=="], {}]:
                status, answer = sandbox.rpc("process.Process/SendInput", {"process": process, "input": {"stdin": wrong}})
                assert (status, answer["code"]) == (400, "invalid_argument"), wrong
            assert sandbox.rpc("process.Process/CloseStdin", {"process": process})[0] == 200
            messages, end = stream.all()
        printed = b"".join(base64.b64decode(it["event"]["data"]["stdout"]) for it in messages if "data" in it["event"])
        assert (printed, end) == (b"\xfb\xff" * 4, {})

    await in_thread(check)


async def test_a_process_is_found_by_its_tag(sandbox):
    def check():
        with sandbox.streaming(START, sandbox.start("sleep 60", tag="mine")) as stream:
            pid = stream.started()
            (listed,) = sandbox.rpc("process.Process/List", {})[1]["processes"]
            assert (listed["pid"], listed["tag"], listed["config"]["cmd"]) == (pid, "mine", "/bin/bash")
            for selector in [{}, {"pid": 0}, {"pid": pid, "tag": "mine"}, {"tag": ""}]:
                assert sandbox.rpc("process.Process/SendSignal", {"process": selector, "signal": 9})[0] == 400
            for selector in [{"pid": 4_000_000_000}, {"tag": "another"}]:
                assert sandbox.rpc("process.Process/SendSignal", {"process": selector, "signal": 9})[0] == 404
            for signal in [0, 19, "SIGNAL_UNSPECIFIED", None, "KILL"]:
                assert sandbox.rpc("process.Process/SendSignal", {"process": {"pid": pid}, "signal": signal})[0] == 400
            kill = {"process": {"tag": "mine"}, "signal": "SIGNAL_SIGKILL"}
            assert sandbox.rpc("process.Process/SendSignal", kill) == (200, {})
            messages, _ = stream.all()
            assert messages[-1]["event"]["end"]["exitCode"] == -1

    await in_thread(check)


async def test_a_stream_of_input_is_refused_where_it_breaks(sandbox):
    def check():
        with sandbox.streaming(START, sandbox.start("cat", stdin=True)) as stream:
            pid = stream.started()
            start = envelope({"start": {"process": {"pid": pid}}})
            data = envelope({"data": {"input": {"stdin": encoded(b"hello")}}})
            method = "process.Process/StreamInput"
            for body, says in [
                (b"", "no message"),
                (data, "before start"),
                (start + start, "once"),
                (start + envelope({}), "one of"),
                (start + data[:-3], "ends after"),
                (envelope({"start": {"process": {"pid": 999_999}}}), "999999"),
                (start + envelope({"data": {"input": {}}}), "either"),
                (start + envelope(b"", length=0xFFFFFF00), "can have"),
            ]:
                messages, end = sandbox.stream(method, body)
                assert messages == [] and says in end["error"]["message"], (says, end)
            assert sandbox.stream(method, start + envelope({"keepalive": {}}) + data + envelope({}, END)) == ([{}], {})
            sandbox.rpc("process.Process/CloseStdin", {"process": {"pid": pid}})
            messages, _ = stream.all()
        printed = b"".join(base64.b64decode(it["event"]["data"]["stdout"]) for it in messages if "data" in it["event"])
        assert printed == b"hello"

    await in_thread(check)


async def test_a_stream_of_input_that_breaks_later_has_given_its_first_parts(sandbox):
    method = "process.Process/StreamInput"

    def check():
        with sandbox.streaming(START, sandbox.start("cat", stdin=True)) as stream:
            pid = stream.started()
            start = envelope({"start": {"process": {"pid": pid}}})

            def data(text):
                return envelope({"data": {"input": {"stdin": encoded(text)}}})

            broken = {
                b"a": envelope({"start": {"process": {"pid": pid}}}),
                b"b": envelope({"data": {"input": {"stdin": 7}}}),
                b"c": envelope({"data": {"input": {"stdin": "?"}}}),
                b"e": envelope({"data": {"input": {"stdin": "", "pty": ""}}}),
                b"f": envelope(b"{", length=1),
                b"g": envelope({}, flags=0x40),
                b"h": b"\0\0",
            }
            for text, body in broken.items():
                with sandbox.streaming(method, start + data(text) + body) as refused:
                    messages, end = refused.all()
                    # A client must not send the whole of it again.
                    assert refused.answer.getheader("isolator-outcome") == "unknown", (text, end)
                assert messages == [] and end["error"]["code"] == "invalid_argument", (text, end)
            # A part that is compressed, and one that says it is.
            packed = gzip.compress(json.dumps({"data": {"input": {"stdin": encoded(b"i")}}}).encode())
            sent = sandbox.stream(method, start + envelope(packed, flags=1), Connect_Content_Encoding="gzip")
            assert sent == ([{}], {}), sent
            _, end = sandbox.stream(method, start + data(b"j") + envelope(b"no gzip", flags=1), Connect_Content_Encoding="gzip")
            assert "decompressed" in end["error"]["message"], end
            # A process that has ended takes none.
            sandbox.rpc("process.Process/CloseStdin", {"process": {"pid": pid}})
            messages, _ = stream.all()
            _, end = sandbox.stream(method, start + data(b"k"))
            assert end["error"]["code"] == "not_found", end
        printed = b"".join(base64.b64decode(it["event"]["data"]["stdout"]) for it in messages if "data" in it["event"])
        assert printed == b"abcefghij"

    await in_thread(check)


async def test_a_stream_is_kept_alive_as_often_as_its_client_asks(sandbox):
    messages, _ = await in_thread(sandbox.stream, START, sandbox.start("sleep 2.5"), Keepalive_Ping_Interval="1")
    assert [next(iter(message["event"])) for message in messages] == ["start", "keepalive", "keepalive", "end"]


async def test_a_client_that_goes_away_leaves_its_process_and_one_whose_time_is_over_does_not(sandbox):
    def check():
        with sandbox.streaming(START, sandbox.start("sleep 60")) as stream:
            stays = stream.started()
        with sandbox.streaming(START, sandbox.start("sleep 60"), Connect_Timeout_Ms="1500") as stream:
            goes = stream.started()
        time.sleep(0.5)
        pids = {process["pid"] for process in sandbox.rpc("process.Process/List", {})[1]["processes"]}
        assert pids == {stays, goes}
        time.sleep(1.5)
        pids = {process["pid"] for process in sandbox.rpc("process.Process/List", {})[1]["processes"]}
        assert pids == {stays}
        messages, end = sandbox.stream(START, sandbox.start("sleep 60"), Connect_Timeout_Ms="300")
        assert (len(messages), end["error"]["code"]) == (1, "deadline_exceeded")
        # One that only looks on kills nothing.
        attach = envelope({"process": {"pid": stays}})
        _, end = sandbox.stream(CONNECT, attach, Connect_Timeout_Ms="300")
        assert end["error"]["code"] == "deadline_exceeded"
        assert {process["pid"] for process in sandbox.rpc("process.Process/List", {})[1]["processes"]} == {stays}

    await in_thread(check)


async def test_the_end_of_a_process_is_kept_for_a_client_that_comes_late(sandbox):
    def check():
        with sandbox.streaming(START, sandbox.start("exit 5")) as stream:
            pid = stream.started()
        time.sleep(1)
        messages, end = sandbox.stream(CONNECT, envelope({"process": {"pid": pid}}))
        assert messages[-1]["event"]["end"]["exitCode"] == 5 and end == {}

    await in_thread(check)


def memory_of(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


async def test_a_client_that_reads_slowly_slows_only_its_own_process(sandbox, served):
    pid = process_with(f"XDG_STATE_HOME={served[1]}")

    def check():
        before = memory_of(pid)
        with sandbox.streaming(START, sandbox.start("head -c 1000000000 /dev/zero")) as stream:
            number = stream.started()
            time.sleep(3)
            # A gigabyte is on its way, and next to nothing of it is in memory.
            assert memory_of(pid) - before < 64_000, (before, memory_of(pid))
            assert sandbox.run("echo beside")[0] == b"beside\n"
            for _ in range(100):
                assert "data" in stream.next()[1]["event"]
            listed = sandbox.rpc("process.Process/List", {})[1]["processes"]
            assert [process["pid"] for process in listed] == [number]
            assert memory_of(pid) - before < 64_000, (before, memory_of(pid))

    await in_thread(check)


async def test_a_large_output_arrives_as_a_whole(sandbox):
    def check():
        total, kinds = 0, set()
        with sandbox.streaming(START, sandbox.start("head -c 300000000 /dev/zero")) as stream:
            while True:
                flags, message = stream.next()
                if flags & END:
                    return total, kinds
                event = message["event"]
                kinds.update(event)
                if "data" in event:
                    # Whole groups of four letters for three bytes, and the rest.
                    text = event["data"]["stdout"]
                    total += len(text) // 4 * 3 - text.count("=")

    assert await in_thread(check) == (300_000_000, {"start", "data", "end"})


async def test_ten_thousand_streams_are_bounded_and_leave_the_sandbox_usable(sandbox):
    def opened(pid, results):
        try:
            for _ in range(100):
                messages, end = sandbox.stream(CONNECT, envelope({"process": {"pid": pid}}), Connect_Timeout_Ms="50")
                results.append(end.get("error", {}).get("code"))
        except OSError:
            # The server has as many connections as it takes.
            results.append("refused")

    def check():
        with sandbox.streaming(START, sandbox.start("sleep 600")) as stream:
            pid, results = stream.started(), []
            threads = [threading.Thread(target=opened, args=(pid, results)) for _ in range(100)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert set(results) <= {"deadline_exceeded", "resource_exhausted", "unavailable", "refused"}, set(results)
            assert len(results) > 1000
        assert sandbox.run("echo after")[0] == b"after\n"

    await in_thread(check)


async def test_streams_beyond_the_bound_of_a_session_are_refused(sandbox):
    def check():
        with sandbox.streaming(START, sandbox.start("sleep 600")) as stream:
            attach = envelope({"process": {"pid": stream.started()}})
            held, refused = [], None
            try:
                while refused is None and len(held) < 300:
                    streaming = sandbox.streaming(CONNECT, attach)
                    another = streaming.__enter__()
                    held.append(streaming)
                    flags, message = another.next()
                    refused = message if flags & END else None
                assert refused["error"]["code"] == "resource_exhausted", refused
                assert 32 <= len(held) <= 256
            finally:
                for streaming in held:
                    streaming.__exit__(None, None, None)
        # The server notices that clients are gone when it writes to them.
        for _ in range(100):
            messages, end = sandbox.stream(START, sandbox.start("echo after"))
            if end == {}:
                return
            assert end["error"]["code"] == "resource_exhausted", end
            time.sleep(0.1)
        assert False, end

    await in_thread(check)


async def test_a_kill_in_the_middle_ends_every_stream(api):
    def check():
        sandbox = api.create()
        assert sandbox.write("large", b"x" * 30_000_000)[0] == 200
        with (
            sandbox.streaming(START, sandbox.start("sleep 600")) as process,
            sandbox.streaming("filesystem.Filesystem/WatchDir", envelope({"path": "."})) as watch,
            sandbox.streaming(START, sandbox.start("cat", stdin=True)) as cat,
        ):
            process.started(), watch.next()
            pid = cat.started()
            download = api.connection()
            download.request("GET", sandbox.files("large"), headers=sandbox.headers())
            upload = socket.create_connection((api.host, api.port), timeout=30)
            head = "".join(f"{name}: {value}\r\n" for name, value in sandbox.headers().items())
            upload.sendall(
                f"POST {sandbox.files('new')} HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: 100000000\r\n"
                "Content-Type: application/octet-stream\r\n\r\n".encode() + b"x" * 100_000
            )
            answer = download.getresponse()
            received = len(answer.read(1000))
            assert (answer.status, received) == (200, 1000)
            assert sandbox.kill() == 204
            # The SDKs then ask for the health of the sandbox, and say that it was killed.
            for stream in [process, cat]:
                with pytest.raises(http.client.IncompleteRead):
                    stream.all()
            _, end = watch.all()
            assert end["error"]["code"] == "unavailable" and "was not found" in end["error"]["message"], end
            with contextlib.suppress(OSError):
                while part := answer.read(1 << 20):
                    received += len(part)
            assert received < 30_000_000
            for _ in range(400):
                try:
                    upload.sendall(b"x" * 100_000)
                except OSError:
                    break
            upload.settimeout(30)
            # The server may have closed the connection before it was read.
            with contextlib.suppress(ConnectionError):
                assert upload.recv(100).split()[1:2] in ([], [b"502"])
            status, body = sandbox.rpc("process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": ""}})
            assert (status, body["code"]) == (502, "unavailable") and "was not found" in body["message"], body

    await in_thread(check)


async def test_a_refusal_reaches_a_client_that_is_still_sending(api, sandbox):
    def check():
        connection = api.connection()
        headers = sandbox.headers() | {"X-Access-Token": "0" * 32, "Content-Type": "application/octet-stream"}
        # The connection is kept.
        for _ in range(2):
            connection.request("POST", sandbox.files("late"), body=b"x" * 20_000_000, headers=headers)
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["code"]) == (401, 401)
        # So is that of a path, or a method, that is not there.
        for method, path in [("POST", "/templates"), ("PUT", "/files")]:
            connection.request(method, path, body=b"x" * 20_000_000)
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["code"]) == (501, 501)

    await in_thread(check)


async def test_another_client_s_secret_opens_nothing(api, sandbox):
    other = await in_thread(api.create)
    try:
        for headers in [
            {"E2b_Sandbox_Id": sandbox.id, "X_Access_Token": other.token},
            {"E2b_Sandbox_Id": sandbox.id},
            {"E2b_Sandbox_Id": sandbox.id, "X_Access_Token": ""},
        ]:
            for path in ["/process.Process/List", "/filesystem.Filesystem/Stat"]:
                status, body, _ = await in_thread(api.request, "POST", path, "{}", Content_Type="application/json", **headers)
                assert (status, json.loads(body)["code"]) == (401, "unauthenticated")
            body = sandbox.start("touch /tmp/broken")
            status, body, _ = await in_thread(api.request, "POST", f"/{START}", body, Content_Type="application/connect+json", **headers)
            assert status == 401 or b"unauthenticated" in body
            assert (await in_thread(api.request, "GET", sandbox.files("/etc/passwd"), **headers))[0] == 401
    finally:
        await in_thread(other.kill)
    assert (await in_thread(sandbox.read, "/tmp/broken"))[0] == 404


# Files


def signature(sandbox, path, operation, expires=None, user=""):
    raw = ":".join([path, operation, user, sandbox.token, *([] if expires is None else [str(expires)])])
    return "v1_" + base64.b64encode(hashlib.sha256(raw.encode()).digest()).decode().rstrip("=")


async def test_a_signature_is_for_one_path_and_one_way(api, sandbox):
    def get(path, method="GET", **query):
        url = "/files?" + urllib.parse.urlencode({"path": path} | query)
        body = b"other" if method == "POST" else None
        return api.request(method, url, body, E2b_Sandbox_Id=sandbox.id, Content_Type="application/octet-stream")[0]

    def check():
        sandbox.write("a", b"content")
        sandbox.write("b", b"content")
        read, later = signature(sandbox, "a", "read"), int(time.time()) + 60
        assert get("a", signature=read) == 200
        assert get("b", signature=read) == 401
        assert get("./a", signature=read) == 401
        assert get("a", signature=read, username="root") in (400, 401)
        assert get("a", "POST", signature=read) == 401
        assert get("a", signature=signature(sandbox, "a", "write")) == 401
        assert get("a", "POST", signature=signature(sandbox, "a", "write")) == 200
        assert get("a", signature=signature(sandbox, "a", "read", later), signature_expiration=later) == 200
        assert get("a", signature=signature(sandbox, "a", "read", later), signature_expiration=later + 1) == 401
        assert get("a", signature=signature(sandbox, "a", "read", 1), signature_expiration=1) == 401
        assert get("a", signature="") == 401
        assert get("a", signature=read[:-1]) == 401

    await in_thread(check)


async def test_files_are_the_same_after_they_went_up_and_down(sandbox):
    def check():
        data = os.urandom(10_000_000)
        status, body, _ = sandbox.write("large", data)
        assert (status, json.loads(body)) == (200, [{"name": "large", "type": "file", "path": "/home/user/large"}])
        status, body, headers = sandbox.read("large")
        assert status == 200 and body == data and headers["content-length"] == str(len(data))
        status, body, headers = sandbox.read("large", Accept_Encoding="gzip")
        assert headers["content-encoding"] == "gzip" and gzip.decompress(body) == data
        assert sandbox.write("packed", gzip.compress(data, 1), Content_Encoding="gzip")[0] == 200
        assert sandbox.read("packed")[1] == data
        assert sandbox.write("empty", b"")[0] == 200
        status, body, headers = sandbox.read("empty")
        assert (status, body, headers["content-length"]) == (200, b"", "0")
        # The kernel says that this file is empty.
        assert b"Linux version" in sandbox.read("/proc/version")[1]
        status, body, headers = sandbox.request("HEAD", sandbox.files("large"))
        assert (status, body, headers["content-length"]) == (200, b"", str(len(data)))

    await in_thread(check)


def form(files, cut="cut"):
    parts = [
        f'--{cut}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n'.encode()
        + b"Content-Type: application/octet-stream\r\n\r\n"
        + content
        + b"\r\n"
        for field, name, content in files
    ]
    return b"".join(parts) + f"--{cut}--\r\n".encode()


async def test_forms_write_each_of_their_files(sandbox):
    def send(body, path=None, **headers):
        url = "/files" if path is None else sandbox.files(path)
        status, answer, _ = sandbox.request("POST", url, body, **{"Content_Type": "multipart/form-data; boundary=cut"} | headers)
        return status, json.loads(answer)

    def check():
        files = [("file", "one", b"1"), ("file", "deep/er/two é", b"\r\n--cu"), ("file", "/tmp/three", b"")]
        status, answer = send(form(files))
        assert status == 200
        assert [it["path"] for it in answer] == ["/home/user/one", "/home/user/deep/er/two é", "/tmp/three"]
        assert sandbox.read("deep/er/two é")[1] == b"\r\n--cu"
        assert send(form([("file", "ignored", b"2")]), path="one")[1][0]["path"] == "/home/user/one"
        assert sandbox.read("one")[1] == b"2"
        status, answer = send(gzip.compress(form([("file", "packed", b"3" * 5000)])), Content_Encoding="gzip")
        assert status == 200 and sandbox.read("packed")[1] == b"3" * 5000
        for body, headers, says in [
            (b"", {}, "form"),
            (b"no form at all", {}, "form"),
            (form(files)[:-20], {}, "form"),
            (form([]), {}, "no file"),
            (form([("other", "a", b"")]), {}, "other"),
            (form([("file", "", b"")]), {}, "filename"),
            (form([("file", "a", b""), ("file", "b", b"")]), {"path": "a"}, "one file"),
            (b"--cut\r\nContent-Disposition: form-data; " + b"x" * 5_000_000, {}, "headers"),
            (form(files), {"Content_Type": "multipart/form-data"}, "boundary"),
            (form(files), {"Content_Type": "text/plain"}, "text/plain"),
            (form(files), {"Content_Encoding": "br"}, "gzip"),
            (form(files), {"X_Metadata_Author": "me"}, "metadata"),
        ]:
            status, answer = send(body, **headers)
            assert (status, says in answer["message"]) == (400, True), (says, status, answer)
        assert sandbox.request("POST", "/files", b"x", Content_Type="application/octet-stream")[0] == 400

    await in_thread(check)


async def test_odd_paths_are_used_or_refused(sandbox):
    def check():
        for path, found in [
            ("~/tilde", "/home/user/tilde"),
            ("a/../b", "/home/user/b"),
            ("new\nline", "/home/user/new\nline"),
            ('"quotes\' $(x) `y`', '/home/user/"quotes\' $(x) `y`'),
            ("-rf", "/home/user/-rf"),
            ("\u202eRTL 漢字 🎉", "/home/user/\u202eRTL 漢字 🎉"),
        ]:
            status, body, _ = sandbox.write(path, path.encode())
            assert (status, json.loads(body)[0]["path"]) == (200, found), path
            assert sandbox.read(found)[1] == path.encode()
        for path, statuses in [
            ("~root/x", [400]),
            ("a\0b", [400]),
            ("x" * 300, [400]),
            ("/" + "x/" * 3000, [400]),
            # There is no room for a new file in the folders of the kernel.
            ("/proc/version", [400, 403, 404]),
            ("/dev/null", [400, 403]),
            ("/home/user", [400]),
            ("", [400]),
        ]:
            status, body, _ = sandbox.write(path, b"x")
            assert status in statuses, (path[:20], status, body)
        for path, status in [("none", 404), ("/home/user", 400), ("/dev/zero", 400), ("none/none", 404), ("-rf/x", 400)]:
            assert sandbox.read(path)[0] == status, path

    await in_thread(check)


async def test_a_full_disk_is_507_and_leaves_no_file(sandbox):
    def check():
        sizes = [1 << 20] * 4096
        connection = sandbox.server.connection()
        head = sandbox.headers(Content_Type="application/octet-stream", Content_Length=str(sum(sizes)))
        try:
            connection.request("POST", sandbox.files("/tmp/full"), (b"x" * size for size in sizes), head)
        except OSError:
            # The server answers before it has read all.
            pass
        answer = connection.getresponse()
        body = json.loads(answer.read())
        assert (answer.status, body["code"]) == (507, 507) and "no space" in body["message"], body
        assert sandbox.read("/tmp/full")[0] == 404
        assert sandbox.write("/tmp/small", b"fits")[0] == 200

    await in_thread(check)


async def test_an_upload_that_stops_leaves_no_file(sandbox):
    def check():
        with socket.create_connection((sandbox.server.host, sandbox.server.port), timeout=30) as upload:
            head = "".join(f"{name}: {value}\r\n" for name, value in sandbox.headers().items())
            upload.sendall(
                f"POST {sandbox.files('half')} HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: 1000\r\n"
                "Content-Type: application/octet-stream\r\n\r\nsome".encode()
            )
            time.sleep(0.5)
        time.sleep(0.5)
        assert sandbox.read("half")[0] == 404
        assert sandbox.run("ls -A /home/user | grep -v '^\\.'")[0] == b""
        # Neither does one whose compression is broken.
        assert sandbox.write("bad", gzip.compress(b"x" * 1000)[:-4], Content_Encoding="gzip")[0] == 400
        assert sandbox.read("bad")[0] == 404

    await in_thread(check)


async def test_the_file_system_is_described_and_changed(sandbox):
    def rpc(method, **message):
        return sandbox.rpc(f"filesystem.Filesystem/{method}", message)

    def check():
        assert rpc("MakeDir", path="folder/sub")[0] == 200
        assert rpc("MakeDir", path="folder/sub")[1]["code"] == "already_exists"
        sandbox.write("folder/file", b"12345")
        entry = rpc("Stat", path="folder/file")[1]["entry"]
        assert (entry["type"], entry["size"], entry["path"]) == ("FILE_TYPE_FILE", "5", "/home/user/folder/file")
        assert (entry["permissions"], entry["mode"]) == ("-rw-r--r--", 0o644)
        assert rpc("MakeDir", path="folder/file")[0] == 400
        assert rpc("MakeDir", path="folder/file/sub")[0] == 400
        names = [it["name"] for it in rpc("ListDir", path="folder", depth=1)[1]["entries"]]
        assert sorted(names) == ["file", "sub"]
        for path, depth, status in [("folder", 33, 400), ("none", 1, 404), ("folder/file", 1, 400), ("folder", "x", 400)]:
            assert rpc("ListDir", path=path, depth=depth)[0] == status
        assert rpc("Move", source="folder/file", destination="folder/moved")[1]["entry"]["name"] == "moved"
        assert rpc("Move", source="none", destination="other")[0] == 404
        assert rpc("Remove", path="folder") == (200, {})
        assert rpc("Remove", path="folder") == (200, {})
        assert rpc("Stat", path="folder")[1]["code"] == "not_found"
        sandbox.run("ln -s /etc/hostname link; ln -s none broken; mkfifo pipe")
        link = rpc("Stat", path="link")[1]["entry"]
        assert (link["type"], link["isSymlink"], link["symlinkTarget"]) == ("FILE_TYPE_FILE", True, "/etc/hostname")
        broken = rpc("Stat", path="broken")[1]["entry"]
        assert (broken["type"], broken["symlinkTarget"]) == ("FILE_TYPE_SYMLINK", "/home/user/none")
        assert rpc("Stat", path="pipe")[1]["entry"]["type"] == "FILE_TYPE_UNSPECIFIED"
        assert sandbox.read("pipe")[0] == 400

    await in_thread(check)


async def test_watchers_say_what_changes_and_are_forgotten(sandbox):
    def rpc(method, **message):
        return sandbox.rpc(f"filesystem.Filesystem/{method}", message)

    def check():
        rpc("MakeDir", path="watched/sub")
        watcher = rpc("CreateWatcher", path="watched", recursive=True, includeEntry=True)[1]["watcherId"]
        sandbox.write("watched/sub/file", b"1")
        events = rpc("GetWatcherEvents", watcherId=watcher)[1]["events"]
        created = [it for it in events if it["type"] == "EVENT_TYPE_CREATE" and it["name"] == "sub/file"]
        assert created and created[0]["entry"]["path"] == "/home/user/watched/sub/file", events
        assert rpc("GetWatcherEvents", watcherId=watcher)[1] == {"events": []}
        for id, status in [("none", 404), ("", 400), (None, 400), (7, 400)]:
            assert rpc("GetWatcherEvents", watcherId=id)[0] == status
        assert rpc("RemoveWatcher", watcherId=watcher) == (200, {})
        assert rpc("RemoveWatcher", watcherId=watcher)[0] == 404
        assert rpc("CreateWatcher", path="none")[0] == 404
        sandbox.write("plain", b"")
        assert rpc("CreateWatcher", path="plain")[0] == 400
        many = [rpc("CreateWatcher", path="watched")[0] for _ in range(20)]
        assert set(many) == {200, 429} and many[0] == 200, many

    await in_thread(check)


async def test_an_answer_with_changes_is_bounded_however_fast_they_come(sandbox):
    def check():
        sandbox.rpc("filesystem.Filesystem/MakeDir", {"path": "busy"})
        watcher = sandbox.rpc("filesystem.Filesystem/CreateWatcher", {"path": "busy"})[1]["watcherId"]
        names = "import itertools\nfor number in itertools.count():\n    open(f'busy/{number % 500:0200}', 'w').close()"
        with sandbox.streaming(START, sandbox.start(f'python3 -c "{names}"')) as stream:
            pid = stream.started()
            asked = 0
            # Those of one time of asking can all be lost.
            for turn in range(6):
                if turn > 1 and asked:
                    break
                began = time.monotonic()
                status, answer = sandbox.rpc("filesystem.Filesystem/GetWatcherEvents", {"watcherId": watcher})
                took = time.monotonic() - began
                # Two seconds are for collecting.
                assert took < 6, took
                if status != 200:
                    # More than the sandbox keeps has come meanwhile.
                    assert "lost" in answer["message"], answer
                    watcher = sandbox.rpc("filesystem.Filesystem/CreateWatcher", {"path": "busy"})[1]["watcherId"]
                    continue
                events = answer["events"]
                asked += len(events)
                assert len(events) <= 10_000 and sum(256 + len(it["name"]) for it in events) < (1 << 20) + 1024, len(events)
            assert asked > 0
            kill = {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}
            assert sandbox.rpc("process.Process/SendSignal", kill)[0] == 200
            stream.all()
        # Each answer is a message of its own, so a client that asks again gets the rest, and then none.
        watcher = sandbox.rpc("filesystem.Filesystem/CreateWatcher", {"path": "busy"})[1]["watcherId"]
        assert sandbox.rpc("filesystem.Filesystem/GetWatcherEvents", {"watcherId": watcher}) == (200, {"events": []})

    await in_thread(check)


async def test_the_audit_log_has_each_process_and_transfer(sandbox, served):
    def check():
        sandbox.run("echo for the audit log")
        sandbox.write("noted", b"content")
        sandbox.read("noted")
        with sandbox.streaming(START, sandbox.start("sleep 60")) as stream:
            stream.started()
        lines = []
        for _ in range(100):
            time.sleep(0.1)
            lines = [json.loads(line) for line in (served[1] / "audit.jsonl").read_text().splitlines()][-4:]
            if [line["status"] for line in lines] == ["success", "success", "success", "detached"]:
                break
        started, written, read, left = lines
        assert [line["tool"] for line in lines] == ["e2b.start_process", "e2b.write_file", "e2b.read_file", "e2b.start_process"]
        assert started["code_sha256"] == hashlib.sha256(b"echo for the audit log").hexdigest()
        assert started["bytes"]["stdout"] == 18
        sha256 = hashlib.sha256(b"content").hexdigest()
        assert written["files"] == [{"name": "noted", "sha256": sha256, "bytes": 7}]
        assert read["bytes"]["returned"] == 7
        assert [line["status"] for line in lines] == ["success", "success", "success", "detached"]
        assert len({line["session"] for line in lines}) == 1

    await in_thread(check)


async def test_the_audit_log_has_input_signals_and_changes_of_folders(sandbox, served):
    def lines(tool):
        lines = [json.loads(line) for line in (served[1] / "audit.jsonl").read_text().splitlines()]
        return [line for line in lines if line["tool"] == f"e2b.{tool}"]

    def comes(tool, before):
        deadline = time.monotonic() + 10
        while len(lines(tool)) == before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(lines(tool)) == before + 1, lines(tool)

    def check():
        typed = b"echo typed\n"
        digest = hashlib.sha256(typed).hexdigest()
        with sandbox.streaming(START, sandbox.start("cat > got", stdin=True)) as stream:
            process = {"pid": stream.started()}
            selected = {"process": process, "input": {"stdin": encoded(typed)}}
            assert sandbox.rpc("process.Process/SendInput", selected)[0] == 200
            parts = [{"start": {"process": process}}, {"data": {"input": {"stdin": encoded(typed)}}}]
            sandbox.stream("process.Process/StreamInput", b"".join(map(envelope, parts)))
            with sandbox.streaming(CONNECT, envelope({"process": process})) as attached:
                attached.started()
                signal = {"process": process, "signal": "SIGNAL_SIGKILL"}
                assert sandbox.rpc("process.Process/SendSignal", signal)[0] == 200
        for method, message in [
            ("MakeDir", {"path": "folder"}),
            ("Move", {"source": "folder", "destination": "moved"}),
            ("Remove", {"path": "moved"}),
            ("CreateWatcher", {"path": "/home/user"}),
        ]:
            assert sandbox.rpc(f"filesystem.Filesystem/{method}", message)[0] == 200
        deadline = time.monotonic() + 10
        while not lines("attach_process") and time.monotonic() < deadline:
            time.sleep(0.1)
        for tool in ["send_input", "stream_input"]:
            line = lines(tool)[-1]
            assert (line["process"], line["status"]) == (process["pid"], "success"), line
            assert line["files"] == [{"name": "input", "sha256": digest, "bytes": len(typed)}], line
        assert lines("send_signal")[-1]["signal"] == 9
        assert lines("attach_process")[-1]["process"] == process["pid"]
        paths = [lines(tool)[-1]["paths"] for tool in ["make_folder", "move_file", "remove_file", "create_watcher"]]
        assert paths == [["folder"], ["folder", "moved"], ["moved"], ["/home/user"]]
        # A request whose key was used has one line, as others have.
        key = {"Idempotency_Key": "audited"}
        with sandbox.streaming(START, sandbox.start("cat >> got", stdin=True), **key) as stream:
            selected = {"process": {"pid": stream.started()}, "input": {"stdin": encoded(typed)}}
            for expected in [200, 409]:
                before = len(lines("send_input"))
                assert sandbox.rpc("process.Process/SendInput", selected, Idempotency_Key="audited input")[0] == expected
                comes("send_input", before)
            assert lines("send_input")[-1]["status"] == "error"
            before = len(lines("start_process"))
            _, end = sandbox.stream(START, sandbox.start("cat >> got", stdin=True), **key)
            assert end["error"], end
            comes("start_process", before)
            sandbox.rpc("process.Process/CloseStdin", {"process": selected["process"]})
            stream.all()
        # What was typed is in no line.
        assert "typed" not in (served[1] / "audit.jsonl").read_text()

    await in_thread(check)
