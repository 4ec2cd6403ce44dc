"""A Valkey or Redis server: this machine's, with nothing on disk."""

import shutil
import socket
import ssl
import subprocess
import time
from contextlib import contextmanager

from certificates import certificate

PROGRAM = shutil.which("valkey-server") or shutil.which("redis-server") or "valkey-server"
PASSWORD = "pass word"
STARTS_WITHIN_S = 10


class Valkey:
    """A server that can be stopped and started again, at the same address."""

    def __init__(self, folder, tls=False, port=None, address=None):
        self.folder = folder
        self.port = port or _free_port()
        self.tls = tls
        # Without one, only this machine reaches it.
        self.addresses = [address] if address else ["127.0.0.1", "::1"]
        self.host = address or "localhost"
        self.process = None
        if tls:
            certificate(folder, "localhost", ["localhost"])
        (folder / "password").write_text(PASSWORD + "\n")
        (folder / "journals.key").write_text("k" * 64 + "\n")

    @property
    def settings(self):
        """What a server of Isolator needs to use it."""
        scheme = "valkeys" if self.tls else "redis"
        settings = {
            "address": f"{scheme}://{self.host}:{self.port}/1",
            "keyFile": str(self.folder / "journals.key"),
            "passwordFile": str(self.folder / "password"),
            "timeout": "1s",
        }
        return settings | ({"caFile": str(self.folder / "certificate.pem")} if self.tls else {})

    def start(self):
        ports = ["--port", "0", "--tls-port", self.port] if self.tls else ["--port", self.port]
        if self.tls:
            ports += ["--tls-cert-file", self.folder / "certificate.pem", "--tls-key-file", self.folder / "key.pem"]
            ports += ["--tls-auth-clients", "no", "--tls-ca-cert-file", self.folder / "certificate.pem"]
        options = ["--bind", *self.addresses, "--save", "", "--appendonly", "no", "--requirepass", PASSWORD]
        command = [PROGRAM, *map(str, ports), *options, "--dir", str(self.folder), "--logfile", str(self.folder / "valkey.log")]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until = time.monotonic() + STARTS_WITHIN_S
        while True:
            try:
                socket.create_connection((self.addresses[0], self.port), 1).close()
                return
            except OSError:
                assert self.process.poll() is None and time.monotonic() < until, (self.folder / "valkey.log").read_text()
                time.sleep(0.05)

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()

    def ask(self, *words):
        """Sends a command and returns the answer: a number, bytes or a list of them."""
        with self._connected() as connection, connection.makefile("rwb") as stream:
            for command in (["AUTH", PASSWORD], ["SELECT", "1"], words):
                parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
                stream.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
                stream.flush()
                answer = _answer(stream)
            return answer


    def _connected(self):
        plain = socket.create_connection((self.addresses[0], self.port), 5)
        if not self.tls:
            return plain
        context = ssl.create_default_context(cafile=self.folder / "certificate.pem")
        return context.wrap_socket(plain, server_hostname="localhost")


def _answer(stream):
    line = stream.readline().rstrip(b"\r\n")
    kind, rest = line[:1], line[1:]
    if kind == b"*":
        return [_answer(stream) for _ in range(int(rest))]
    if kind == b"$":
        return None if rest == b"-1" else stream.read(int(rest) + 2)[:-2]
    assert kind in b"+:", line
    return int(rest) if kind == b":" else rest


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def valkey(folder, **options):
    """A server in this folder."""
    folder.mkdir(exist_ok=True)
    server = Valkey(folder, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()
