"""Registries of the tests' own, which are folders of files behind a web server on this machine."""

import base64
import gzip
import hashlib
import io
import json
import re
import stat
import tarfile
import threading
import zipfile
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


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


class Link(NamedTuple):
    """A symbolic link, instead of the text of a file."""

    target: str


def archive(files):
    """A compressed tar with these files, which have texts or bytes or are links, as bytes. They are the same at any time."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed, tarfile.open(fileobj=compressed, mode="w") as tar:
        for path, text in files.items():
            file = tarfile.TarInfo(path)
            if isinstance(text, Link):
                file.type, file.linkname = tarfile.SYMTYPE, text.target
                tar.addfile(file)
                continue
            content = _bytes(text)
            file.size = len(content)
            tar.addfile(file, io.BytesIO(content))
    return packed.getvalue()


def _bytes(text):
    return text.encode() if isinstance(text, str) else text


def wheel(name, version, *metadata, files=None, tag="py3-none-any", record=None, compression=zipfile.ZIP_STORED):
    """A wheel with these files, or with a single empty module, as its file's name and bytes.

    `metadata` are more lines of its metadata. `record` is the list of the files with their hashes, if it is to be another.
    """
    distribution = re.sub("[-_.]+", "_", name)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *metadata]
    described = f"{distribution}-{version}.dist-info"
    files = {f"{distribution}.py": ""} if files is None else dict(files)
    # What files of the description there are besides those that each wheel has.
    files = {path.replace("{info}", described): text for path, text in files.items()} | {
        f"{described}/METADATA": "\n".join(lines) + "\n",
        f"{described}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    files[f"{described}/RECORD"] = _record(files, described) if record is None else record
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path)
            entry.compress_type = compression
            is_link = isinstance(text, Link)
            entry.external_attr = ((stat.S_IFLNK | 0o777) if is_link else (stat.S_IFREG | 0o644)) << 16
            file.writestr(entry, text.target if is_link else text)
    return f"{distribution}-{version}-{tag}.whl", packed.getvalue()


def _record(files, described):
    lines = []
    for path, text in files.items():
        content = _bytes(text.target if isinstance(text, Link) else text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        lines.append(f"{path},sha256={digest},{len(content)}")
    return "\n".join([*lines, f"{described}/RECORD,,", ""])


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
