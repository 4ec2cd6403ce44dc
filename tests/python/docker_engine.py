"""A look at a Docker engine, through its API."""

import http.client
import json
import os
import socket
from pathlib import Path
from urllib.parse import quote

from sandbox import Sandbox

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


def _ask(method, path):
    connection = _connect()
    try:
        connection.request(method, API + path)
        return connection.getresponse().status
    finally:
        connection.close()


FAULTS = ("killed", "thawed", "removed")


def harm(sandbox, fault):
    asks = {
        "killed": ("POST", f"/containers/{sandbox}/kill"),
        "thawed": ("POST", f"/containers/{sandbox}/unpause"),
        "removed": ("DELETE", f"/containers/{sandbox}?force=1"),
    }
    # Whether it was there is of no interest.
    _ask(*asks[fault])


def _named(*names):
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().rstrip() in names:
                yield comm.parent
        except OSError:
            pass


def memory(children):
    status = [(process / "status").read_text() for process in _named("dockerd", "containerd")]
    return sum(int(text.split("VmRSS:")[1].split()[0]) for text in status)


def all_processes():
    return _named("containerd-shim")


def sandboxes(instance):
    containers = _get(f"/containers/json?all=1&{_labelled(instance)}")
    return [Sandbox(found["Id"], found["State"], found["ImageID"]) for found in containers]


def image_id(name):
    return _get(f"/images/{quote(name)}/json")["Id"]


def left(instance, state):
    volumes = _get(f"/volumes?{_labelled(instance)}").get("Volumes") or []
    return sandboxes(instance) + [volume["Name"] for volume in volumes]
