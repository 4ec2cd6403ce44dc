"""A small runner for the kernel that runs the cells of a session in Node.js."""

import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from server import ROOT

KERNEL = ROOT / "runner/session/kernel.cjs"
WITHIN_S = 20
# Of the descriptor by which a kernel gets its channel.
LEAST_NUMBER = 60
ENDED, FAILED, INTERRUPTED, EXITED = range(4)
# Lines of its source, before an error.
SOURCE = re.compile(r"\A<cell \d+>:\d+\n((.*\n){1,3}[\t ]*\^+\n\n)?")
# The flag of a cell that comes with variables.
VARIABLES = 8


@dataclass
class Cell:
    """The outcome of a cell. `shown` has pairs of flag and forms."""

    kind: int
    code: int
    shown: list
    stdout: str
    stderr: str

    @property
    def value(self):
        """The last expression's, as a text."""
        values = [forms["text/plain"].decode() for flag, forms in self.shown if flag == 1]
        return values[-1] if values else None

    @property
    def reason(self):
        """The first line of the error that has ended it, as it was printed, without the line of its source."""
        if self.kind != FAILED:
            return ""
        return SOURCE.sub("", self.stderr).partition("\n")[0]


class Kernel:
    """A kernel and the runner's end of its channel."""

    def __init__(self, folder, *options):
        self.folder = folder
        self.channel, its_end = socket.socketpair()
        self.channel.settimeout(WITHIN_S)
        self.number = 0
        pipes = [os.pipe(), os.pipe()]
        # Node.js makes sure by itself that the lowest numbers are not inherited.
        number = fcntl.fcntl(its_end, fcntl.F_DUPFD_CLOEXEC, LEAST_NUMBER)
        command = [ROOT / "scripts/node", "--file", *options, KERNEL, str(number)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=pipes[0][1],
            stderr=pipes[1][1],
            pass_fds=[number],
            cwd=folder,
            start_new_session=True,
        )
        for _, write in pipes:
            os.close(write)
        its_end.close()
        os.close(number)
        self._hand_over()
        self.pipes = [read for read, _ in pipes]
        for read in self.pipes:
            os.set_blocking(read, False)
        kind, self.name = self.message()
        assert kind == b"r"

    def _hand_over(self):
        """Gives the kernel another channel, which its children don't inherit."""
        first = self.channel
        self.channel, its_end = socket.socketpair()
        self.channel.settimeout(WITHIN_S)
        with first, its_end:
            socket.send_fds(first, [struct.pack(">cI", b"H", 0)], [its_end.fileno()])

    def message(self):
        kind, length = struct.unpack(">cI", self._receive(5))
        return kind, self._receive(length)

    def _receive(self, length):
        data = b""
        while len(data) < length:
            chunk = self.channel.recv(length - len(data))
            if not chunk:
                raise EOFError("the kernel has ended")
            data += chunk
        return data

    def send(self, code, flags=0, variables=()):
        self.announce(code, flags, variables)
        self.go()

    def announce(self, code, flags=0, variables=()):
        """Sends a cell. Its code runs when the kernel is told to go."""
        self.number += 1
        text = "".join(f"{variable}\0" for variable in variables).encode()
        head = struct.pack(">IBI", self.number, flags | VARIABLES, len(text)) + text if text else struct.pack(">IB", self.number, flags)
        payload = head + code.encode()
        self.channel.sendall(struct.pack(">cI", b"C", len(payload)) + payload)

    def go(self):
        self.channel.sendall(struct.pack(">cI", b"G", 0))

    def result(self):
        kind, started = self.message()
        assert (kind, started) == (b"s", b"\x08")
        shown = []
        while True:
            kind, payload = self.message()
            if kind == b"e":
                break
            assert kind == b"d"
            shown.append((payload[0], forms(payload[1:])))
        code = struct.unpack(">i", payload[1:])[0]
        # What was printed has to be there by now.
        stdout, stderr = map(self.printed, self.pipes)
        return Cell(payload[0], code, shown, stdout, stderr)

    def printed(self, pipe):
        data = b""
        while True:
            try:
                chunk = os.read(pipe, 1 << 20)
            except BlockingIOError:
                break
            if not chunk:
                break
            data += chunk
        return data.decode()

    def run(self, code, flags=0, variables=()):
        self.send(code, flags, variables)
        return self.result()

    def good(self, code, flags=0):
        """Runs a cell that ends without an error, and returns what it shows at its end."""
        cell = self.run(code, flags)
        assert (cell.kind, cell.code, cell.stderr) == (ENDED, 0, ""), cell
        return cell.value

    def complete(self, text):
        """Returns where the word at the end of a text begins, and what it may become."""
        self.channel.sendall(struct.pack(">cI", b"Q", len(text.encode())) + text.encode())
        kind, payload = self.message()
        assert kind == b"q"
        (start,), rest, names = struct.unpack(">I", payload[:4]), payload[4:], []
        while rest:
            (length,) = struct.unpack(">H", rest[:2])
            names.append(rest[2 : 2 + length].decode())
            rest = rest[2 + length :]
        return start, names

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def wait_for(self, text):
        """Waits until the cell that runs has printed that on standard output."""
        found = ""
        ends_at = time.monotonic() + WITHIN_S
        while text not in found:
            assert time.monotonic() < ends_at, found
            found += self.printed(self.pipes[0])
            time.sleep(0.005)

    def interrupted(self, code):
        """Runs a cell that prints "go" and does not end, and interrupts it."""
        self.send(code)
        self.wait_for("go\n")
        # It has to be where it does not end.
        time.sleep(0.2)
        started = time.monotonic()
        self.interrupt()
        cell = self.result()
        assert time.monotonic() - started < 2
        assert (cell.kind, cell.code) == (INTERRUPTED, 130), cell
        assert "Interrupted\n" in cell.stderr
        return cell


def forms(payload):
    found = {}
    while payload:
        (length,) = struct.unpack_from(">H", payload)
        media_type = payload[2 : 2 + length].decode()
        (size,) = struct.unpack_from(">I", payload, 2 + length)
        begin = 6 + length
        found[media_type] = payload[begin : begin + size]
        payload = payload[begin + size :]
    return found


@contextmanager
def running(folder, *options, status=0):
    """A kernel that ends with the status when its channel is closed, and leaves nothing behind."""
    kernel = Kernel(folder, *options)
    try:
        yield kernel
        kernel.channel.close()
        assert kernel.process.wait(WITHIN_S) == status
        assert_gone(kernel.process.pid)
    finally:
        if kernel.process.poll() is None:
            os.killpg(kernel.process.pid, signal.SIGKILL)
            kernel.process.wait()
        for pipe in kernel.pipes:
            os.close(pipe)


def assert_gone(group):
    """Nothing is left of a process group, except for processes that another process is about to reap."""
    ends_at = time.monotonic() + WITHIN_S
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        assert time.monotonic() < ends_at, "processes are left"
        time.sleep(0.01)


@pytest.fixture
def kernel(tmp_path):
    with running(tmp_path) as kernel:
        yield kernel
