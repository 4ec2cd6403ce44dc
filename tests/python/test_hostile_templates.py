"""Modules that are hostile or do not fit into templates, and what their programs and others see.

An image of its own has all of them. Each is imported ahead by a server of its own. Whatever it does, programs of that image answer,
whether they import it or not; programs of another image go on meanwhile; nothing is left when the server ends; and what can't be in
a template is complained of.
"""

import json
import os
import re
import subprocess
import time
import uuid
from pathlib import Path

import anyio
import pytest
from server import BINARY, configuration, isolator

pytestmark = pytest.mark.only_on("embedded")

IMAGE = f"isolator-test/hostile-{uuid.uuid4().hex[:8]}"
# What the modules don't need is most of the stock image.
LEFT_OUT = ["./usr/local/lib", "./usr/share", "./usr/lib/git-core", "./usr/lib/locale"]

# An interpreter that is not ready by then is given up, and another is tried.
COMPLAINS_WITHIN_S = 45
# A program that stops itself is given up five seconds after its timeout.
ANSWERS_WITHIN_S = 10
NEIGHBOUR_WITHIN_S = 5
PROGRAMS = 2
TIMEOUT = "3s"

# Servers at the same time. Most of their time they wait.
SERVERS = 3


def hooks(body, when="before"):
    return f"import os\ndef hook():\n    import time\n    {body}\nos.register_at_fork({when}=hook)"


WRITES = """import os
def hook():
    for number in range(3, 64):
        for word in (b"1", b"0"):
            try:
                os.write(number, word)
            except OSError:
                pass
os.register_at_fork(before=hook, after_in_parent=hook, after_in_child=hook)
"""

LOOKS = """import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def hook():
    buffer = ctypes.create_string_buffer(64)
    for pid in list(range(1, 300)) + [os.getppid()]:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        libc.setns(handle, 0x7e020000)
        libc.setns(handle, 0x20000000)
        libc.syscall(310, pid, buffer, 0, buffer, 0, 0)
        if pid != os.getpid():
            libc.ptrace(16, pid, 0, 0)
        os.close(handle)
hook()
os.register_at_fork(before=hook, after_in_child=hook)
"""

CHILD_THAT_STOPS = """import os, signal
if os.fork() == 0:
    while True:
        for pid in range(2, 400):
            try:
                if pid != os.getpid():
                    os.kill(pid, signal.SIGSTOP)
            except OSError:
                pass
"""

# Each module, what its programs' status is when they import it, and what the complaint says; None where nothing has to be said.
MODULES = {
    "absent": (None, "error", "hostile_absent"),
    "thread": ("import threading, time\nthreading.Thread(target=time.sleep, args=(999,), daemon=True).start()", "success", "thread"),
    "large": ("DATA = b'x' * (100 << 20)", "success", "memory"),
    "endless": ("import time\nwhile True: time.sleep(9)", "timeout", "not ready|took|within"),
    "printing": ("print('hello')", "success", "hello|print"),
    "leaving": ("import sys\nsys.exit(3)", "error", "SystemExit"),
    "leaving_at_once": ("import os\nos._exit(3)", "error", "ended"),
    "child": ("import os, time\nif os.fork() == 0:\n    time.sleep(999)", "success", "started processes"),
    "child_that_stops": (CHILD_THAT_STOPS, "timeout", "started processes|not ready"),
    "mapping": ("import mmap\nDATA = mmap.mmap(-1, 4096)", "success", "shared memory"),
    "lock": ("import multiprocessing\nLOCK = multiprocessing.Lock()", "success", "shared memory"),
    "file": ("FILE = open(__file__)", "success", "open files"),
    "socket": ("import socket\nPAIR = socket.socketpair()", "success", "open files"),
    "hook_that_writes": (WRITES, "success", None),
    "hook_that_hangs": (hooks("time.sleep(999)"), "success", None),
    "hook_that_hangs_after": (hooks("time.sleep(999)", "after_in_parent"), "success", None),
    "hook_that_hangs_in_the_fork": (hooks("time.sleep(999)", "after_in_child"), "success", "get ready|not ready|connect"),
    "hook_that_ends": (hooks("os._exit(0)", "after_in_child"), "success", None),
    "looking": (LOOKS, "success", None),
    "shared_files": ("open('/dev/shm/seen', 'a').write('x')", "success", None),
    "shared_mapping": (
        "import mmap\nF = open('/dev/shm/seen', 'w+b')\nF.truncate(4096)\nM = mmap.mmap(F.fileno(), 4096)\nF.close()",
        "success",
        "shared memory|open files",
    ),
    "raising": ("raise ValueError('no such luck')", "error", "no such luck"),
}


def root_of(name):
    """The files of an image."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "isolator"
    digest = json.loads((data / "names.json").read_text())[f"docker.io/{name}:latest"]
    return data / "images" / digest.removeprefix("sha256:") / "root"


def image(*arguments):
    subprocess.run([BINARY, "--engine", "embedded", "image", *arguments], check=True, timeout=120)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The image with the modules."""
    folder = tmp_path_factory.mktemp("image")
    root, tar = root_of("isolator/python"), folder / "root.tar"
    (python,) = [it.name for it in (root / "usr/lib").glob("python3.*")]
    modules = folder / "added/usr/local/lib" / python / "dist-packages"
    modules.mkdir(parents=True)
    for name, (code, _, _) in MODULES.items():
        if code is not None:
            (modules / f"hostile_{name}.py").write_text(code)
    left_out = [f"--exclude={path}" for path in LEFT_OUT]
    create = ["tar", "--create", "--numeric-owner", f"--file={tar}", *left_out, f"--directory={root}", "."]
    subprocess.run(create, check=True, timeout=120)
    append = ["tar", "--append", "--owner=0", "--group=0", "--mode=a+rX", f"--file={tar}", f"--directory={folder / 'added'}", "usr"]
    subprocess.run(append, check=True, timeout=120)
    image("import", str(tar), "--name", IMAGE)
    tar.unlink()
    try:
        yield IMAGE
    finally:
        image("rm", IMAGE)


def started(folder, name, modules, log):
    language = {
        "image": name,
        "command": ["python3", "{file}"],
        "defaultFile": "main.py",
        "extensions": [".py"],
        "env": {"PATH": "/usr/bin:/bin", "HOME": "/tmp"},
        "preload": {"interpreter": "python", "modules": modules, "memoryMB": 64},
    }
    others = {"python": {"enabled": False}, "go": {"enabled": False}}
    config = configuration(folder, languageSettings=others | {"hostile": language}, pool={"size": 2, "hot": 1})
    return isolator(folder, "stdio-auto", config, log=log)


class Neighbour:
    """Runs programs of another image, one after the other."""

    def __init__(self, server):
        self.server = server
        self.seconds = []
        self.wrong = []

    async def run(self):
        while True:
            began = time.monotonic()
            result = await self.server.call(language="javascript", entrypoint_code="console.log(6 * 7)", timeout="20s")
            self.seconds.append(time.monotonic() - began)
            data = result.structured_content
            if (data["status"], data.get("stdout")) != ("success", "42\n"):
                self.wrong.append(data)
            await anyio.sleep(0.2)


async def answered(server, code):
    began = time.monotonic()
    result = await server.call(language="hostile", entrypoint_code=code, timeout=TIMEOUT)
    data = result.structured_content
    return data["status"], data.get("stdout", ""), time.monotonic() - began, data.get("message"), data.get("stderr")


async def complaints(server, log):
    (content,) = (await server.client.read_resource("isolator://pool")).contents
    known = json.loads(content.text)["pools"]["hostile"]["preload"]["complaints"]
    logged = [line for line in log.read_text().splitlines() if " WARN " in line or " ERROR " in line]
    return "\n".join(known + logged)


async def faults_of(name, hostile, folder):
    """The problems with a module that is imported ahead."""
    _, status, complaint = MODULES[name]
    folder.mkdir()
    path = folder / "log"
    faults = []
    with path.open("w") as log:
        async with started(folder, hostile, [f"hostile_{name}"], log) as server:
            neighbour = Neighbour(server)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(neighbour.run)
                # Before the template is there, and after.
                for pause in (0, 2):
                    await anyio.sleep(pause)
                    for _ in range(PROGRAMS):
                        for imports, expected in ((f"import hostile_{name}\n", status), ("", "success")):
                            found = await answered(server, imports + "print('answer', 6 * 7)")
                            is_right = "answer 42\n" in found[1] if expected == "success" else True
                            # Where a program would be stopped, a fork of a template may go on.
                            is_right = is_right and found[0] in {expected, "success" if expected == "timeout" else expected}
                            if not is_right or found[2] > ANSWERS_WITHIN_S:
                                faults.append((imports, found))
                said = ""
                with anyio.move_on_after(COMPLAINS_WITHIN_S if complaint else 0):
                    while not re.search(complaint, said := await complaints(server, path)):
                        await anyio.sleep(0.3)
                if complaint and not re.search(complaint, said):
                    faults.append(f"no complaint: {said}")
                tasks.cancel_scope.cancel()
    if neighbour.wrong:
        faults.append(f"a program of another image: {neighbour.wrong}")
    if max(neighbour.seconds) > NEIGHBOUR_WITHIN_S:
        faults.append(f"a program of another image took {max(neighbour.seconds)} s")
    return faults + [path.read_text()[-2000:]] if faults else []


async def test_hostile_modules_harm_no_program(hostile, tmp_path):
    found, slots = {}, anyio.CapacityLimiter(SERVERS)

    async def check(name):
        async with slots:
            found[name] = await faults_of(name, hostile, tmp_path / name)

    async with anyio.create_task_group() as tasks:
        for name in MODULES:
            tasks.start_soon(check, name)
    assert {name: faults for name, faults in found.items() if faults} == {}
    assert found.keys() == MODULES.keys()
