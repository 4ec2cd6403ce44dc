"""Registries of the tests' own, which are folders of files behind a web server on this machine."""

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served(folder):
    """Serves a folder on this machine, and yields the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def archive(files):
    """A compressed tar with these files, as bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for path, text in files.items():
            file = tarfile.TarInfo(path)
            content = text.encode()
            file.size = len(content)
            tar.addfile(file, io.BytesIO(content))
    return packed.getvalue()


def wheel(name, version, *metadata):
    """A wheel with a single empty module and more lines of metadata, as its file's name and bytes."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *metadata]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr(f"{name}.py", "")
        file.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n")
        file.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return f"{name}-{version}-py3-none-any.whl", packed.getvalue()


class PyPI:
    """A package index for Python: the pages of the simple interface, and wheels."""

    def __init__(self, folder):
        self.folder = folder
        self.files = {}

    def publish(self, name, version, *requires, extras=()):
        """Publishes a wheel with a single empty module, and returns its SHA-256."""
        metadata = [f"Provides-Extra: {extra}" for extra in extras] + [f"Requires-Dist: {wanted}" for wanted in requires]
        file, content = wheel(name, version, *metadata)
        page = self.folder / "simple" / name
        page.mkdir(parents=True, exist_ok=True)
        (page / file).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        self.files[file] = name, f'href="{file}#sha256={digest}"'
        self._write(name)
        return digest

    def yank_all(self):
        """Withdraws everything that was published so far."""
        self.files = {file: (name, link + ' data-yanked="withdrawn"') for file, (name, link) in self.files.items()}
        for name in {name for name, _ in self.files.values()}:
            self._write(name)

    def _write(self, name):
        links = [f"<a {link}>{file}</a>" for file, (its, link) in self.files.items() if its == name]
        (self.folder / "simple" / name / "index.html").write_text("<!DOCTYPE html>\n" + "\n".join(links))


class Npm:
    """A registry for npm: a document and archives for each package."""

    def __init__(self, folder):
        self.folder = folder
        self.address = None

    def publish(self, name, version, dependencies=None):
        """Publishes a module, and returns its checksum."""
        package = {"name": name, "version": version, "main": "index.js", "dependencies": dependencies or {}}
        packed = archive({"package/package.json": json.dumps(package), "package/index.js": ""})
        (self.folder / f"{name}-{version}.tgz").write_bytes(packed)
        integrity = f"sha512-{base64.b64encode(hashlib.sha512(packed).digest()).decode()}"
        file = self.folder / name
        document = json.loads(file.read_text()) if file.exists() else {"name": name, "versions": {}}
        for older in document["versions"].values():
            older["deprecated"] = "withdrawn"
        dist = {"integrity": integrity, "tarball": f"{self.address}/{name}-{version}.tgz"}
        document["versions"][version] = package | {"dist": dist}
        document["dist-tags"] = {"latest": version}
        file.write_text(json.dumps(document))
        return integrity


class Crates:
    """A registry of crates with a sparse index."""

    def __init__(self, folder):
        self.folder = folder
        self.address = None

    def begin(self, address):
        """Writes what cargo asks for first."""
        self.address = address
        (self.folder / "config.json").write_text(json.dumps({"dl": f"{address}/{{crate}}-{{version}}.crate"}))

    def publish(self, name, version):
        """Publishes an empty crate with a name of four letters, and yanks its older versions."""
        manifest = f'[package]\nname = "{name}"\nversion = "{version}"\nedition = "2024"\n'
        crate = archive({f"{name}-{version}/Cargo.toml": manifest, f"{name}-{version}/src/lib.rs": ""})
        (self.folder / f"{name}-{version}.crate").write_bytes(crate)
        index = self.folder / name[:2] / name[2:4] / name
        index.parent.mkdir(parents=True, exist_ok=True)
        older = index.read_text().replace('"yanked": false', '"yanked": true') if index.exists() else ""
        checksum = hashlib.sha256(crate).hexdigest()
        entry = {"name": name, "vers": version, "deps": [], "cksum": checksum, "features": {}, "yanked": False}
        index.write_text(older + json.dumps(entry) + "\n")
