"""Clients of a cluster that speak to it by hand, and many of them at once that count what fails."""

import base64
import http.client
import itertools
import json
import threading
import time
from contextlib import contextmanager

import apis
from by_hand import CLIENT, MODERN, request
from cluster import DOMAIN

# No answer takes longer.
WITHIN_S = 60

# The revision of clients that open protocol sessions.
OLD = "2025-11-25"


class Answer(apis.Answer):
    """An answer over HTTP."""

    @property
    def node(self):
        """The node that has answered."""
        return self.headers.get("isolator-node")

    @property
    def outcome(self):
        return self.headers.get("isolator-outcome")

    @property
    def message(self):
        """The answer of MCP, which may be an event of a stream."""
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            data = [line[5:] for line in self.body.decode().splitlines() if line.startswith("data:")]
            return json.loads(next(one for one in reversed(data) if one.strip()))
        return self.json

    @property
    def result(self):
        """The result of a tool."""
        assert self.status == 200, (self.status, self.body)
        return self.message["result"]

    @property
    def data(self):
        return self.result["structuredContent"]


class Client:
    """A connection that is kept between requests."""

    def __init__(self, place, token=None):
        self.place = place
        self.connection = http.client.HTTPConnection(*place, timeout=WITHIN_S)
        self.token = token
        # With it, the client speaks the older revision.
        self.protocol_session = None

    def close(self):
        self.connection.close()

    def send(self, method, path, body=None, **headers):
        """Sends a request. Headers are written with underscores."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
        if body is not None:
            headers = {"content-type": "application/json"} | headers
        if self.token is not None:
            headers = {"authorization": f"Bearer {self.token}"} | headers
        self.connection.request(method, path, body, headers)

    def answer(self):
        answer = self.connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, headers, answer.read())

    def ask(self, method, path, body=None, **headers):
        self.send(method, path, body, **headers)
        return self.answer()

    def hello(self):
        """Opens a protocol session, as clients of the older revisions do."""
        hello = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": {"name": "by-hand", "version": "1"}}
        answer = self.ask("POST", "/mcp", request(0, "initialize", hello), accept=BOTH)
        self.protocol_session = answer.headers["mcp-session-id"]
        self.notify("notifications/initialized")
        return answer

    def notify(self, method):
        message = {"jsonrpc": "2.0", "method": method}
        answer = self.ask("POST", "/mcp", message, accept=BOTH, mcp_session_id=self.protocol_session)
        assert answer.status == 202, answer.body

    def call(self, tool, headers=None, **arguments):
        """The answer to a call of a tool."""
        message, own = self.call_of(tool, **arguments)
        return self.ask("POST", "/mcp", message, **own | (headers or {}))

    def call_of(self, tool, **arguments):
        """A call of a tool, and its headers."""
        message = request(1, "tools/call", {"name": tool, "arguments": arguments})
        if self.protocol_session is not None:
            return message, {"accept": BOTH, "mcp_protocol_version": OLD, "mcp_session_id": self.protocol_session}
        message["params"]["_meta"] = CLIENT
        headers = {"accept": BOTH, "mcp_protocol_version": MODERN, "mcp_method": "tools/call", "mcp_name": tool}
        # What the schemas of the tools mark.
        for name, header in {"session": "session", "replay": "session", "handle": "handle"}.items():
            if name in arguments:
                headers[f"mcp_param_{header}"] = arguments[name]
        return message, headers

    def run(self, code, **arguments):
        return self.call("execute_code", language="python", entrypoint_code=code, **arguments)

    def cell(self, session, code, headers=None, **arguments):
        return self.call("execute_code", headers, session=session, entrypoint_code=code, **arguments)

    def open(self, **arguments):
        """The handle of a new session."""
        return self.call("open_session", language="python", **arguments).data["session"]


BOTH = "application/json, text/event-stream"


@contextmanager
def client(cluster, place=None):
    """A client of the balancer, or of a node."""
    found = Client(place or cluster.place, cluster.token)
    try:
        yield found
    finally:
        found.close()


def printed_over_mcp(client, code):
    return client.run(code).data["stdout"]


def printed_over_fusion(client, code):
    answer = client.ask("POST", "/run_code", {"code": code, "language": "python"})
    assert answer.status == 200, (answer.status, answer.body)
    return answer.json["run_result"]["stdout"]


def printed_over_piston(client, code):
    body = {"language": "python", "version": "*", "files": [{"content": code}]}
    answer = client.ask("POST", "/api/v2/execute", body)
    assert answer.status == 200, (answer.status, answer.body)
    return answer.json["run"]["stdout"]


WAYS = {"MCP": printed_over_mcp, "SandboxFusion": printed_over_fusion, "Piston": printed_over_piston}


class Load:
    """Clients that each run one program after the other. No call is repeated by them, and each failure is kept."""

    def __init__(self, cluster, clients, ways, code, old):
        self.cluster, self.code, self.old = cluster, code, old
        self.failed, self.times = [], []
        self._numbers = itertools.count()
        self._ends = threading.Event()
        ways = itertools.islice(itertools.cycle(ways), clients)
        self.threads = [threading.Thread(target=self._work, args=(way,), daemon=True) for way in ways]
        for thread in self.threads:
            thread.start()

    def _work(self, way):
        client = Client(self.cluster.place, self.cluster.token)
        if self.old:
            client.hello()
        while not self._ends.is_set():
            number = next(self._numbers)
            began = time.monotonic()
            try:
                said = WAYS[way](client, self.code % number)
                if said != f"{number}\n":
                    self.failed.append((way, number, said))
            except Exception as error:
                self.failed.append((way, number, repr(error)))
                client.connection.close()
            self.times.append(time.monotonic() - began)
        client.close()

    def done(self):
        """How many calls have ended."""
        return len(self.times)

    def end(self):
        self._ends.set()
        for thread in self.threads:
            thread.join(WITHIN_S)
        assert not any(thread.is_alive() for thread in self.threads), "a call is not answered"

    def slowest(self):
        return max(self.times)


@contextmanager
def load(cluster, clients=6, ways=tuple(WAYS), code="print(%d)", old=False):
    """Calls all the time, which must not fail."""
    calls = Load(cluster, clients, ways, code, old)
    try:
        yield calls
    finally:
        calls.end()
    assert calls.failed == [], (len(calls.failed), calls.done(), calls.failed[:5])


class E2b:
    """A client of E2B's API, whose requests find their sandbox by a header, the path, or the host."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.client = Client(cluster.place)
        self.key = {"x_api_key": cluster.e2b_key}

    def create(self):
        answer = self.client.ask("POST", "/sandboxes", {"templateID": "base"}, **self.key)
        assert answer.status == 201, (answer.status, answer.body)
        return answer.json["sandboxID"], answer.json["envdAccessToken"]

    def info(self, sandbox):
        return self.client.ask("GET", f"/sandboxes/{sandbox}", **self.key)

    def kill(self, sandbox):
        return self.client.ask("DELETE", f"/sandboxes/{sandbox}", **self.key)

    def execute(self, sandbox, token, code, by_host=False):
        """The text of the result of a cell, and the answer."""
        place = {"host": f"49999-{sandbox}.{DOMAIN}"} if by_host else {"e2b_sandbox_id": sandbox}
        answer = self.client.ask("POST", "/execute", {"code": code}, x_access_token=token, **place)
        events = [json.loads(line) for line in answer.body.splitlines() if line.strip()] if answer.status == 200 else []
        texts = [event.get("text") for event in events if event["type"] == "result"]
        return (texts or [None])[0], answer

    def start(self, sandbox, token, command):
        """All that a process prints."""
        process = {"process": {"cmd": "/bin/bash", "args": ["-c", command]}}
        headers = {"content_type": "application/connect+json", "e2b_sandbox_id": sandbox, "x_access_token": token}
        answer = self.client.ask("POST", "/process.Process/Start", _envelope(process), **headers)
        assert answer.status == 200, (answer.status, answer.body)
        events = [message["event"] for message in _messages(answer.body) if "event" in message]
        return b"".join(base64.b64decode(event["data"].get("stdout", "")) for event in events if "data" in event)


def _envelope(message):
    body = json.dumps(message).encode()
    return b"\0" + len(body).to_bytes(4, "big") + body


def _messages(stream):
    while stream:
        size = int.from_bytes(stream[1:5], "big")
        yield json.loads(stream[5 : 5 + size])
        stream = stream[5 + size :]
