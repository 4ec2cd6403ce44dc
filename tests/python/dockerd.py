"""A Docker daemon of the tests' own, to which anything may happen.

It has a directory, a socket and a containerd of its own, shares nothing with other daemons, and no container of it
has a network. Its disk is in memory, so that it can be full at once.
"""

import os
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import docker_engine
import processes
from disk import Disk, unmount_below

# Enough for an image three times: loading one needs the archive, what is in that, and the layers.
DISK_BYTES = 3 << 30

STARTED_WITHIN_S = 60
STOPPED_WITHIN_S = 60
LOADED_WITHIN_S = 240

OPTIONS = [
    "--bridge=none",
    "--iptables=false",
    "--ip-forward=false",
    # Where the machine has one containerd for all.
    "--containerd-namespace=isolator-faults",
    "--containerd-plugins-namespace=isolator-faults-plugins",
    "--debug",
]


class Dockerd:
    """The daemon."""

    def __init__(self, folder):
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self.host = f"unix://{folder}/docker.sock"
        self._process = None
        # Where the images come from. Later the environment names this one.
        self._source = docker_engine.named()
        self.disk = Disk(self.data, DISK_BYTES)

    def start(self):
        """Starts it, and waits until it answers."""
        # The daemon's own settings are for another one.
        settings = self.folder / "daemon.json"
        settings.write_text("{}")
        # Of one that was killed. The processes they name may be any others by now, over which none would start.
        (self.folder / "docker.pid").unlink(missing_ok=True)
        if self._containerd() is None:
            self._containerd_pid().unlink(missing_ok=True)
        command = ["dockerd", *OPTIONS, "--config-file", str(settings), "--host", self.host]
        command += ["--data-root", str(self.data), "--exec-root", str(self.folder / "exec")]
        command += ["--pidfile", str(self.folder / "docker.pid")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + STARTED_WITHIN_S
        while not self._answers():
            assert self._process.poll() is None, f"dockerd has ended: {self.last_words()}"
            assert time.monotonic() < until, f"dockerd does not answer: {self.last_words()}"
            time.sleep(0.05)

    def stop(self):
        """Ends it as an operator would, and its containers with it."""
        self._process.terminate()
        self._process.wait(STOPPED_WITHIN_S)

    def kill(self):
        """Ends it at once. Its containers go on."""
        containerd = self._containerd()
        self._process.kill()
        self._process.wait(STOPPED_WITHIN_S)
        # The kernel ends its containerd with it, a moment later. A daemon that is started in that moment would
        # take it for one that stays.
        if containerd is not None:
            with suppress(ProcessLookupError):
                os.kill(containerd, signal.SIGKILL)
        until = time.monotonic() + STOPPED_WITHIN_S
        while self._containerd() is not None:
            assert time.monotonic() < until, "containerd does not end"
            time.sleep(0.01)

    @contextmanager
    def hung(self):
        """It takes connections and does nothing."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def load(self, image):
        """Takes an image from the machine's own daemon."""
        with tempfile.TemporaryFile(dir=self.data) as archive:
            docker_engine.save(image, archive, self._source)
            target = docker_engine.connect(self.host, LOADED_WITHIN_S)
            target.blocksize = 1 << 20
            headers = {"Content-Length": str(archive.tell())}
            archive.seek(0)
            docker_engine.send(target, "/images/load?quiet=1", archive, headers)

    def calls(self, path):
        """How many calls of this kind it has been asked."""
        return self.log.read_text(errors="replace").count(f"Calling {path}")

    def last_words(self):
        return self.log.read_text(errors="replace")[-2000:]

    def close(self):
        """Ends it and everything that it had."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(STOPPED_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.kill()
        # A daemon that was killed may leave its own behind, and that those that hold containers, and the containers.
        for pid in filter(None, [self._containerd(), *self._shims()]):
            with suppress(FileNotFoundError):
                for each in [*processes.children(pid), pid]:
                    with suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)
        # What containers have had, and then the disk.
        unmount_below(self.folder)

    def _containerd_pid(self):
        return self.folder / "exec/containerd/containerd.pid"

    def _containerd(self):
        """Its containerd, if that runs."""
        try:
            pid = int(self._containerd_pid().read_text())
            return pid if str(self.folder) in Path(f"/proc/{pid}/cmdline").read_text() else None
        except (OSError, ValueError):
            return None

    def _shims(self):
        """The processes that hold containers of this daemon."""
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                command = entry.read_text()
                if "containerd-shim" in command and f"{self.folder}/" in command:
                    yield int(entry.parent.name)

    def _answers(self):
        connection = docker_engine.connect(self.host)
        try:
            connection.request("GET", "/_ping")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


@contextmanager
def own_dockerd(folder, images):
    """A daemon that runs and has these images."""
    daemon = Dockerd(folder)
    try:
        daemon.start()
        for image in images:
            daemon.load(image)
        yield daemon
    finally:
        daemon.close()
