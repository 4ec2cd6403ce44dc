"""A look at a Docker engine, through its API."""

import http.client
import io
import json
import os
import shutil
import socket
import tarfile
from pathlib import Path
from urllib.parse import quote

import processes
from sandbox import Sandbox

# Old enough for every engine that is supported.
API = "/v1.41"
LABEL = "isolator.instance"
DEADLINE_S = 20
SAVED_WITHIN_S = 240


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("engine", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def named():
    """The address of the engine that the environment names."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def connect(address=None, timeout=DEADLINE_S):
    """A connection to the engine at an address, or to the one that the environment names."""
    address = address or named()
    if address.startswith("unix://"):
        return _UnixConnection(address.removeprefix("unix://"), timeout)
    return http.client.HTTPConnection(address.split("://", 1)[1], timeout=timeout)


def _get(path):
    connection = connect()
    try:
        connection.request("GET", API + path)
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        return json.loads(body)
    finally:
        connection.close()


def remove_image(name):
    status = ask("DELETE", f"/images/{quote(name)}?force=1")
    assert status == 200, status


def _labelled(instance):
    return "filters=" + quote(json.dumps({"label": [f"{LABEL}={instance}"]}))


def ask(method, path):
    """The status of an answer."""
    connection = connect()
    try:
        connection.request(method, API + path)
        return connection.getresponse().status
    finally:
        connection.close()


def send(connection, path, archive, headers):
    """Sends an archive over its own connection. An engine reports most failures behind the status of a success."""
    try:
        connection.request("POST", API + path, archive, headers)
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status == 200 and b"errorDetail" not in said, said
    finally:
        connection.close()


def save(image, file, address=None):
    """Writes an image into a file. The older version of HTTP has no chunks, each of which would cost time."""
    connection = connect(address, SAVED_WITHIN_S)
    connection.connect()
    with connection.sock, connection.sock.makefile("rb") as answer:
        connection.sock.sendall(f"GET {API}/images/{image}/get HTTP/1.0\r\n\r\n".encode())
        status = answer.readline()
        assert b" 200 " in status, status
        while answer.readline() not in (b"\r\n", b""):
            pass
        shutil.copyfileobj(answer, file, 1 << 20)


FAULTS = ("killed", "thawed", "removed")

# And what may happen to one that runs.
RUNNING_FAULTS = ("killed", "paused", "removed", "restarted")


def harm(sandbox, fault):
    asks = {
        "killed": ("POST", f"/containers/{sandbox}/kill"),
        "thawed": ("POST", f"/containers/{sandbox}/unpause"),
        "removed": ("DELETE", f"/containers/{sandbox}?force=1"),
        "paused": ("POST", f"/containers/{sandbox}/pause"),
        "restarted": ("POST", f"/containers/{sandbox}/restart?t=0"),
    }
    # Whether it was there is of no interest.
    ask(*asks[fault])


def _named(*names):
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().rstrip() in names:
                yield comm.parent
        except OSError:
            pass


def memory(children):
    return sum(processes.status(process.name, "VmRSS") for process in _named("dockerd", "containerd"))


def all_processes():
    return _named("containerd-shim")


def sandboxes(instance):
    containers = _get(f"/containers/json?all=1&{_labelled(instance)}")
    return [Sandbox(found["Id"], found["State"], found["ImageID"]) for found in containers if _is_there(found)]


def _is_there(listed):
    """Whether a container is more than a line of the engine's list.

    Docker lists a container for ever whose removal crossed with a restart: each writes its record when it is done,
    and the restart may be the last although it failed.
    """
    is_going = listed["State"] in ("removing", "dead")
    return not is_going or ask("GET", f"/containers/{listed['Id']}/json") != 404


def image_id(name):
    return _get(f"/images/{quote(name)}/json")["Id"]


def left(instance, state):
    volumes = _get(f"/volumes?{_labelled(instance)}").get("Volumes") or []
    return sandboxes(instance) + [volume["Name"] for volume in volumes]


def derive(image, name, variable):
    with io.BytesIO() as context:
        with tarfile.open(fileobj=context, mode="w") as archive:
            dockerfile = f"FROM {image}\nENV {variable}\n".encode()
            entry = tarfile.TarInfo("Dockerfile")
            entry.size = len(dockerfile)
            archive.addfile(entry, io.BytesIO(dockerfile))
        headers = {"Content-Type": "application/x-tar"}
        send(connect(timeout=SAVED_WITHIN_S), f"/build?t={quote(name)}", context.getvalue(), headers)


def tag(image, name):
    status = ask("POST", f"/images/{image}/tag?repo={quote(name)}&tag=latest")
    assert status == 201, status
