"""A runner that talks to the kernel of a Python session, without a sandbox around it."""

import array
import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from processes import children

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "runner/session/kernel.py"


def _python():
    """The Python of the tests with IPython, which no other test needs."""
    (ROOT / ".clients").mkdir(exist_ok=True)
    with open(ROOT / ".clients/ipython.lock", "w", encoding="utf-8") as lock:
        # Several processes may come here at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [ROOT / "scripts/ipython", "-c", "import sys; print(sys.executable)"]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


PYTHON = os.environ.get("ISOLATOR_TEST_KERNEL_PYTHON") or _python()
HOW = ["ended", "failed", "interrupted", "exited"]
# Why there is no checkpoint, in the order of the codes.
WHY_NOT = ["", "threads", "uncounted threads", "processes", "timer", "lock", "no process", "not asked"]
# What a kernel says when it has loaded what cells need.
LOADED = b"l" + bytes(4)
WITHIN_S = 20
PR_SET_CHILD_SUBREAPER = 36
# An interpreter that imported modules before it got the kernel. Like that of a sandbox, it looks for none next to it.
WAITING = """
import sys
kernel, channel, *modules = sys.argv[1:]
sys.path.pop(0)
for name in modules:
    __import__(name)
sys.argv[:] = [kernel, channel]
with open(kernel) as file:
    code = compile(file.read(), kernel, "exec")
exec(code, {"__name__": "__main__", "__file__": kernel, "__builtins__": __builtins__})
"""
# A template for sessions, and what its fork does.
PREPARED = """
import sys
kernel, channel = sys.argv[1:]
sys.path.pop(0)
sys.argv[:] = [""]
with open(kernel) as file:
    code = compile(file.read(), kernel, "exec")
space = {"__name__": "kernel", "__file__": kernel, "__builtins__": __builtins__}
exec(code, space)
space["prepare"](dict(sys.modules))
sys.argv[:] = [kernel, channel]
space["start"]()
"""


@dataclass
class Cell:
    """The outcome of a cell."""

    checkpoint: bool
    why_not: str
    how: str = ""
    code: int = 0
    out: str = ""
    err: str = ""
    # The value of the last expression, and what was shown, each as a dictionary of its forms.
    value: dict = None
    shown: list = field(default_factory=list)
    # Both, in their order.
    order: list = field(default_factory=list)

    @property
    def text(self):
        return self.value["text/plain"].decode() if self.value else None

    @property
    def error(self):
        """The last line of the exception that has ended it, as it was printed."""
        return self.err.rstrip("\n").rpartition("\n")[2] if self.how in ("failed", "interrupted") else ""


def ended(cell):
    """The cell, if it came to its end."""
    assert (cell.how, cell.code) == ("ended", 0), cell.err
    return cell


class Gone(Exception):
    """The process that ran a cell is gone."""


class Channel:
    def __init__(self, end):
        self.socket = end
        self.buffer = b""
        # Whether the kernel has said that it has loaded what cells need.
        self.is_loaded = False

    def send(self, kind, payload=b"", descriptors=()):
        message = kind + struct.pack(">I", len(payload)) + payload
        extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        sent = self.socket.sendmsg([message], extra)
        if sent < len(message):
            # The other end may be gone after it has read everything.
            self.socket.sendall(message[sent:])

    def take(self):
        """The next message that is in the buffer, or None."""
        if len(self.buffer) < 5:
            return None
        (length,) = struct.unpack(">I", self.buffer[1:5])
        if len(self.buffer) < 5 + length:
            return None
        kind, payload = self.buffer[:1], self.buffer[5 : 5 + length]
        self.buffer = self.buffer[5 + length :]
        return kind, payload

    def fill(self):
        data = self.socket.recv(1 << 20)
        if not data:
            raise Gone
        self.buffer += data
        if self.buffer.startswith(LOADED):
            # It comes before everything else, and may come at any time until then.
            self.buffer, self.is_loaded = self.buffer.removeprefix(LOADED), True


class Runner:
    """Starts a kernel, and keeps the channels of its checkpoints, the newest last. `preloaded` are modules that it has before, and one
    that `is_prepared` has loaded everything before it is a kernel."""

    def __init__(self, folder, env=(), preloaded=(), is_prepared=False):
        # As for process 1 of a sandbox, what loses its parent becomes a child of this one.
        self.others = set(children(os.getpid()))
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        ours, theirs = socket.socketpair()
        self.channels = [Channel(ours)]
        self.number, self.kept = 0, []
        env = {**os.environ, "ISOLATOR_SECRET": "x", "LC_ALL": "C.UTF-8", **dict(env)}
        program = ["-c", PREPARED] if is_prepared else ["-c", WAITING] if preloaded else []
        with theirs:
            self.process = subprocess.Popen(
                [PYTHON, *program, str(KERNEL), str(theirs.fileno()), *preloaded],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        # Of each process that has run cells.
        self.pids = [self.process.pid]
        kind, self.version = self._message(self.channels[0])
        assert kind == b"r"

    def _message(self, channel, within=WITHIN_S):
        until = time.monotonic() + within
        while (message := channel.take()) is None:
            assert select.select([channel.socket], [], [], until - time.monotonic())[0], "no message came"
            channel.fill()
        return message

    def wait_until_loaded(self):
        """Waits until the kernel has loaded what cells need. Otherwise it ends what it does ahead when the first cell comes."""
        channel = self.channels[0]
        while not channel.is_loaded:
            assert select.select([channel.socket], [], [], WITHIN_S)[0], "the kernel did not load what it needs"
            channel.fill()

    def start(self, code, checkpoint=False, go=True):
        """Starts a cell. Returns a function that waits for its end. Its code runs when the kernel is told to go."""
        self.number += 1
        streams = [os.pipe(), os.pipe()]
        fresh_ours, fresh_theirs = socket.socketpair()
        payload = struct.pack(">IB", self.number, checkpoint) + code.encode()
        self.channels[-1].send(b"C", payload, [streams[0][1], streams[1][1], fresh_theirs.fileno()])
        for _, end in streams:
            os.close(end)
        fresh_theirs.close()
        has_checkpoint, why_not = self._split(fresh_ours, b"s")
        cell, channel = Cell(has_checkpoint, why_not), self.channels[-1]
        if go:
            self.go()
        reads = [end for end, _ in streams]
        return lambda within=WITHIN_S: self._finish(cell, channel, reads, within)

    def go(self):
        """Lets the code of a cell run that was started."""
        self.channels[-1].send(b"G")

    def prepare(self, cell_follows=False):
        """Has the checkpoint of the next cell made ahead. Returns why there is none, and nothing if there is one."""
        ours, theirs = socket.socketpair()
        self.channels[-1].send(b"P", bytes([cell_follows]), [theirs.fileno()])
        theirs.close()
        has_checkpoint, why_not = self._split(ours, b"p")
        assert has_checkpoint == (why_not == "")
        return why_not

    def _split(self, end, expected):
        """Waits for the process that runs the next cell. Returns whether it is a new one, or else why not."""
        fresh, old = Channel(end), self.channels[-1]
        until = time.monotonic() + WITHIN_S
        channel = None
        while channel is None:
            ready = select.select([old.socket, fresh.socket], [], [], until - time.monotonic())[0]
            assert ready, "the cell did not start"
            for one in [fresh, old]:
                if one.socket in ready:
                    with contextlib.suppress(Gone):
                        one.fill()
                if one.buffer:
                    channel = one
        kind, payload = self._message(channel)
        assert kind == expected, (kind, payload)
        (why_not,) = payload
        assert (channel is fresh) == (why_not == 0)
        if channel is fresh:
            self.channels.append(fresh)
            (pid,) = children(self.pids[-1])
            self.pids.append(pid)
        else:
            end.close()
        return channel is fresh, WHY_NOT[why_not]

    def _finish(self, cell, channel, reads, within):
        texts, until = {end: b"" for end in reads}, time.monotonic() + within

        def read(wait):
            ready = select.select([*texts, *([channel.socket] if wait else [])], [], [], wait)[0]
            for end in ready:
                if end is channel.socket:
                    continue
                data = os.read(end, 1 << 16)
                texts[end] += data
                if not data:
                    finished[end] = texts.pop(end)
            return ready

        finished = {}
        try:
            while True:
                message = channel.take()
                if message is None:
                    left = until - time.monotonic()
                    assert left > 0, "the cell did not end"
                    if channel.socket in read(left):
                        channel.fill()
                    continue
                kind, payload = message
                if kind == b"d":
                    forms = self._forms(payload[1:])
                    cell.order.append(forms)
                    if payload[0]:
                        # A cell may show several, and the last is its own.
                        cell.value = forms
                    else:
                        cell.shown.append(forms)
                    continue
                assert kind == b"e", (kind, payload)
                cell.how, (cell.code,) = HOW[payload[0]], struct.unpack(">i", payload[1:])
                break
        finally:
            while texts and read(0):
                pass
            finished.update(texts)
            cell.out, cell.err = (finished[end].decode(errors="replace") for end in reads)
            # Background threads print into the pipes until the next cell.
            self._close_kept()
            self.kept = reads
        return cell

    @staticmethod
    def _forms(rest):
        forms = {}
        while rest:
            (length,) = struct.unpack(">H", rest[:2])
            kind, rest = rest[2 : 2 + length].decode(), rest[2 + length :]
            (length,) = struct.unpack(">I", rest[:4])
            forms[kind], rest = rest[4 : 4 + length], rest[4 + length :]
        return forms

    def run(self, code, checkpoint=False, within=WITHIN_S):
        return self.start(code, checkpoint)(within)

    def undo(self):
        """Ends the process that ran the last cell, and resumes its checkpoint."""
        pid = self.pids.pop()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.channels.pop().socket.close()
        streams = [os.pipe(), os.pipe()]
        self.channels[-1].send(b"R", descriptors=[end for _, end in streams])
        for _, end in streams:
            os.close(end)
        self._close_kept()
        self.kept = [end for end, _ in streams]

    def complete(self, text):
        """Returns where the word at the end of a text begins, and what it may become."""
        self.channels[-1].send(b"Q", text.encode())
        kind, payload = self._message(self.channels[-1])
        assert kind == b"q"
        (start,) = struct.unpack(">I", payload[:4])
        rest, names = payload[4:], []
        while rest:
            (length,) = struct.unpack(">H", rest[:2])
            names.append(rest[2 : 2 + length].decode())
            rest = rest[2 + length :]
        return start, names

    def interrupt(self):
        os.kill(self.pids[-1], signal.SIGINT)

    def _close_kept(self):
        for end in self.kept:
            os.close(end)
        self.kept = []

    def close(self):
        """Closes all channels. Nothing is left then."""
        for channel in self.channels:
            channel.socket.close()
        self._close_kept()
        try:
            code = self.process.wait(WITHIN_S)
            until = time.monotonic() + WITHIN_S
            while left := set(children(os.getpid())) - self.others:
                assert time.monotonic() < until, f"processes are left: {left}"
                for pid in left:
                    os.waitpid(pid, os.WNOHANG)
                time.sleep(0.001)
        finally:
            for pid in set(children(os.getpid())) - self.others:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return code
