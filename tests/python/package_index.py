"""A package index for Python and a registry for npm for the tests, which fail on request.

`Index` serves both. `pypiserver` and `verdaccio` are real ones with the same packages.
"""

import base64
import copy
import hashlib
import html
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from registries import archive, wheel
from server import ROOT

# What a real registry takes to start on a busy machine, and more.
STARTED_WITHIN_S = 60


def normalized(name):
    return re.sub("[-_.]+", "-", name).lower()


class Packages:
    """The contents of an index: files of Python by the names of their packages, and documents and archives of npm."""

    def __init__(self):
        self.files = {}
        self.documents = {}
        self.archives = {}

    def wheel(self, name, version="1.0", *metadata, **parts):
        """Adds a wheel, and returns its file's name."""
        return self.add(name, *wheel(name, version, *metadata, **parts))

    def sdist(self, name, version="1.0", **files):
        """Adds a source distribution, whose build would run `setup.py`."""
        files = {"PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"} | files
        root = f"{name}-{version}"
        return self.add(name, f"{root}.tar.gz", archive({f"{root}/{path}": text for path, text in files.items()}))

    def add(self, name, file, content):
        self.files.setdefault(normalized(name), {})[file] = content
        return file

    def module(self, name, version="1.0.0", files=None, archived=None, **package):
        """Adds a package for Node.js. `archived` are files that are not below its folder."""
        package = {"name": name, "version": version} | package
        files = {"index.js": ""} if files is None else files
        files = {f"package/{path}": text for path, text in files.items()} | (archived or {})
        packed = archive(files | {"package/package.json": json.dumps(package)})
        file = f"{name.rpartition('/')[2]}-{version}.tgz"
        self.archives[f"{name}/-/{file}"] = packed
        document = self.documents.setdefault(name, {"name": name, "versions": {}, "dist-tags": {}})
        integrity = f"sha512-{base64.b64encode(hashlib.sha512(packed).digest()).decode()}"
        document["versions"][version] = package | {"dist": {"integrity": integrity, "tarball": f"{name}/-/{file}"}}
        document["dist-tags"]["latest"] = version

    def damaged_module(self, name, content):
        """Adds a package for Node.js whose archive is just this."""
        self.module(name)
        self.archives[f"{name}/-/{name}-1.0.0.tgz"] = content
        integrity = f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"
        self.documents[name]["versions"]["1.0.0"]["dist"]["integrity"] = integrity

    def write(self, folder):
        """Writes the files for Python into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for files in self.files.values():
            for file, content in files.items():
                (folder / file).write_bytes(content)


class Index:
    """An index on this machine, and how it behaves. Each field can be changed at any time."""

    def __init__(self, packages):
        self.packages = packages
        # What was asked for, in its order: the method and the path.
        self.asked = []
        # Files, by their names, that are withdrawn, and those that are not what the hash beside them says.
        self.yanked = set()
        self.tampered = set()
        self.without_hashes = False
        # User and password that every request needs.
        self.password = None
        # How long each answer takes.
        self.delay_s = 0
        # Patterns of paths that are never answered, that are answered with an error, and whose answer ends in its middle.
        self.hangs = self.fails = self.breaks = None
        self.ended = threading.Event()

    def __enter__(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _address(self, path, login):
        return f"http://{login}127.0.0.1:{self._server.server_port}/{path}/"

    def python(self, login=""):
        """The address for uv. `login` is a user, a password and an @."""
        return self._address("simple", login)

    def javascript(self, login=""):
        """The address for npm."""
        return self._address("npm", login)

    def downloads(self, part):
        """How many times a file was sent, of whose path this is a part."""
        return sum(part in asked and asked.startswith("GET /") and "." in asked for asked in self.asked)

    def answer(self, path):
        """Status, type and content of an answer."""
        kind, _, rest = path.removeprefix("/").partition("/")
        found = getattr(self, f"_{kind}", lambda _: None)(rest.rstrip("/"))
        return (200, *found) if found else (404, "text/plain", b"there is no such thing")

    def _simple(self, name):
        files = self.packages.files.get(name)
        if files is None:
            return None
        links = []
        for file, content in files.items():
            digest = "" if self.without_hashes else f"#sha256={hashlib.sha256(content).hexdigest()}"
            wanted = re.search(rb"Requires-Python: (.*)", content)
            python = f' data-requires-python="{html.escape(wanted[1].decode())}"' if wanted else ""
            yanked = ' data-yanked="withdrawn"' if file in self.yanked else ""
            links.append(f'<a href="/files/{name}/{file}{digest}"{python}{yanked}>{file}</a>')
        return "text/html", ("<!DOCTYPE html>\n" + "\n".join(links)).encode()

    def _files(self, path):
        name, _, file = path.partition("/")
        content = self.packages.files.get(name, {}).get(file)
        return content and ("application/octet-stream", self._as_told(file, content))

    def _npm(self, path):
        path = unquote(path)
        if packed := self.packages.archives.get(path):
            return "application/octet-stream", self._as_told(path.rpartition("/")[2], packed)
        if path not in self.packages.documents:
            return None
        document = copy.deepcopy(self.packages.documents[path])
        for version in document["versions"].values():
            version["dist"]["tarball"] = self.javascript() + version["dist"]["tarball"]
            if self.without_hashes:
                del version["dist"]["integrity"]
        return "application/json", json.dumps(document).encode()

    def _as_told(self, file, content):
        if file not in self.tampered:
            return content
        if not file.endswith(".whl"):
            # What is behind the end of a compressed archive is not looked at.
            return content + bytes(512)
        changed = io.BytesIO(content)
        with zipfile.ZipFile(changed, "a") as archive:
            archive.writestr("tampered.py", "")
        return changed.getvalue()


def _handler(index):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Or each body waits until its head is acknowledged.
        disable_nagle_algorithm = True

        def do_GET(self, has_body=True):
            path = self.path.partition("?")[0]
            index.asked.append(f"{self.command} {path}")
            if index.hangs and re.search(index.hangs, path):
                index.ended.wait()
                self.close_connection = True
                return
            index.ended.wait(index.delay_s)
            status, kind, content = self._answer(path)
            self.send_response(status)
            if status == 401:
                self.send_header("www-authenticate", 'Basic realm="packages"')
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            if index.breaks and re.search(index.breaks, path):
                content = content[: len(content) // 2]
                self.close_connection = True
            if has_body:
                self.wfile.write(content)

        def do_HEAD(self):
            self.do_GET(has_body=False)

        def _answer(self, path):
            if index.password is not None:
                login = base64.b64encode(":".join(index.password).encode()).decode()
                if self.headers.get("authorization") != f"Basic {login}":
                    return 401, "text/plain", b"who are you?"
            if index.fails and re.search(index.fails, path):
                return 500, "text/plain", b"out of order"
            return index.answer(path)

        def log_message(self, *_):
            pass

    return Handler


@contextmanager
def pypiserver(packages, folder):
    """A real index for Python. Yields its address."""
    packages.write(folder)
    port = _free_port()
    command = [sys.executable, "-m", "pypiserver", "run", "-i", "127.0.0.1", "-p", str(port), "--disable-fallback"]
    with _running([*command, str(folder)], f"http://127.0.0.1:{port}/", folder.parent / "pypiserver.log"):
        yield f"http://127.0.0.1:{port}/simple/"


_VERDACCIO = """\
storage: {folder}/storage
packages: {{"**": {{access: $all, publish: $anonymous}}}}
log: {{type: stdout, format: pretty, level: warn}}
web: {{enable: false}}
"""


@contextmanager
def verdaccio(packages, folder):
    """A real registry for npm, into which the packages are published. Yields its address."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "verdaccio.yaml"
    config.write_text(_VERDACCIO.format(folder=folder))
    port = _free_port()
    address = f"http://127.0.0.1:{port}/"
    command = [str(ROOT / "scripts/node"), "verdaccio", "--config", str(config), "--listen", f"127.0.0.1:{port}"]
    with _running(command, f"{address}-/ping", folder / "verdaccio.log"):
        for name, document in packages.documents.items():
            for version, package in document["versions"].items():
                _publish(address, name, version, package, packages.archives)
        yield address


def _publish(address, name, version, package, archives):
    file = package["dist"]["tarball"].rpartition("/")[2]
    packed = archives[package["dist"]["tarball"]]
    package = package | {"dist": package["dist"] | {"tarball": f"{address}{name}/-/{file}"}}
    attachment = {
        "content_type": "application/octet-stream",
        "data": base64.b64encode(packed).decode(),
        "length": len(packed),
    }
    document = {
        "_id": name,
        "name": name,
        "dist-tags": {"latest": version},
        "versions": {version: package},
        "_attachments": {f"{name}-{version}.tgz": attachment},
    }
    body = json.dumps(document).encode()
    request = urllib.request.Request(address + name.replace("/", "%2f"), body, method="PUT")
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=STARTED_WITHIN_S) as answer:
        assert answer.status == 201, answer.read()


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def _running(command, url, log):
    """A third-party server, once it answers at a URL. It ends with all processes that it has started."""
    with log.open("w") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        until = time.monotonic() + STARTED_WITHIN_S
        while not _answers(url):
            assert process.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url):
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except (urllib.error.URLError, ConnectionError):
        return False
    return True
