"""What the engine has, asked of the engine itself: the tests must not believe the server."""

import http.client
import json
import os
import socket
from urllib.parse import quote

# Old enough for every engine that is supported.
API = "/v1.41"
LABEL = "isolator.instance"
DEADLINE_S = 20


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("engine", timeout=DEADLINE_S)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connect():
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if address.startswith("unix://"):
        return _UnixConnection(address.removeprefix("unix://"))
    return http.client.HTTPConnection(address.split("://", 1)[1], timeout=DEADLINE_S)


def _get(path):
    connection = _connect()
    try:
        connection.request("GET", API + path)
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        return json.loads(body)
    finally:
        connection.close()


def _labelled(instance):
    return "filters=" + quote(json.dumps({"label": [f"{LABEL}={instance}"]}))


def containers(instance):
    """All containers of an instance, running or not."""
    return _get(f"/containers/json?all=1&{_labelled(instance)}")


def volumes(instance):
    """All volumes of an instance."""
    return _get(f"/volumes?{_labelled(instance)}").get("Volumes") or []


def image_id(name):
    """The identity of an image."""
    return _get(f"/images/{quote(name)}/json")["Id"]
