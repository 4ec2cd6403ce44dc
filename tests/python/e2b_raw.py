"""A client of E2B's API that sends what it is told, also what no SDK would send."""

import base64
import http.client
import json
import struct
import urllib.parse
from contextlib import contextmanager

KEY = "e2b_" + "0" * 40
# No answer takes longer.
WITHIN_S = 60
END = 2


def envelope(message, flags=0, length=None):
    """A message of a stream; its length can be a lie."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">BI", flags, len(body) if length is None else length) + body


def encoded(data):
    return base64.b64encode(data).decode()


class Server:
    """A server, whose control plane makes sandboxes."""

    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port

    def connection(self, timeout=WITHIN_S):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def request(self, method, path, body=None, **headers):
        """The status of an answer and its body, in JSON if it is that."""
        connection = self.connection()
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()

    def create(self, **settings):
        status, body, _ = self.request(
            "POST", "/sandboxes", json.dumps({"templateID": "base"} | settings), X_API_KEY=KEY, Content_Type="application/json"
        )
        assert status == 201, body
        made = json.loads(body)
        return Sandbox(self, made["sandboxID"], made["envdAccessToken"])


class Sandbox:
    """A sandbox, whose data plane is used directly."""

    def __init__(self, server, id, token):
        self.server, self.id, self.token = server, id, token

    def headers(self, **more):
        own = {"E2b-Sandbox-Id": self.id, "X-Access-Token": self.token}
        return own | {name.replace("_", "-"): value for name, value in more.items()}

    def request(self, method, path, body=None, **headers):
        return self.server.request(method, path, body, **self.headers(**headers))

    def rpc(self, method, message, **headers):
        """The status and the answer of a unary call."""
        body = message if isinstance(message, bytes) else json.dumps(message)
        status, answer, _ = self.request("POST", f"/{method}", body, **{"Content_Type": "application/json"} | headers)
        return status, json.loads(answer)

    @contextmanager
    def streaming(self, method, body, **headers):
        """The answer of a call with a stream, while it comes."""
        connection = self.server.connection()
        sent = self.headers(**{"Content_Type": "application/connect+json"} | headers)
        try:
            connection.request("POST", f"/{method}", body, sent)
            yield Stream(connection)
        finally:
            connection.close()

    def stream(self, method, body, **headers):
        """All messages of a stream, and what its last one says."""
        with self.streaming(method, body, **headers) as stream:
            return stream.all()

    def start(self, command, **more):
        """The body of a start of a process."""
        return envelope({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", command]}} | more)

    def run(self, command, **headers):
        """The output of a command, and its end."""
        messages, end = self.stream("process.Process/Start", self.start(command), **headers)
        assert end == {}, end
        events = [message["event"] for message in messages]
        output = b"".join(base64.b64decode(event["data"].get("stdout", "")) for event in events if "data" in event)
        return output, events[-1].get("end")

    def kill(self):
        return self.server.request("DELETE", f"/sandboxes/{self.id}", X_API_KEY=KEY)[0]

    def files(self, path, **more):
        return "/files?" + urllib.parse.urlencode({"path": path} | more)

    def write(self, path, data, **headers):
        return self.request("POST", self.files(path), data, **{"Content_Type": "application/octet-stream"} | headers)

    def read(self, path, **headers):
        return self.request("GET", self.files(path), **headers)


class Stream:
    """A stream of messages."""

    def __init__(self, connection):
        self.socket = connection.sock
        self.answer = connection.getresponse()
        self.status = self.answer.status

    def next(self):
        """The flags and the content of the next message."""
        head = self.answer.read(5)
        flags, length = struct.unpack(">BI", head)
        return flags, json.loads(self.answer.read(length))

    def all(self):
        messages = []
        while True:
            flags, message = self.next()
            if flags & END:
                return messages, message
            messages.append(message)

    def started(self):
        """The number of the process of its first message."""
        return self.next()[1]["event"]["start"]["pid"]
