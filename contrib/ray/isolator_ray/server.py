"""The Isolator of a node: found at an address, or started and started again when it ends."""

import ctypes
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

# Pauses between two looks, and after an end.
LOOK_S = 0.1
PAUSE_S = (0.2, 10)
HEALTH_S = 2
STOP_S = 30
MOST_LOG = 4 << 20
PR_SET_PDEATHSIG = 1

SETTINGS = {"apis": {"sandboxFusion": {}}}


class Server:
    """An Isolator, which is checked whenever its state is asked for."""

    def __init__(self, command, address=None, host="127.0.0.1", config=None, environment=None):
        self.command, self.host, self.config = command, host, config
        self.environment = os.environ | (environment or {})
        self.address, self.admin, self.process, self.reason = address, None, None, None
        self.stopping = threading.Event()
        self.thread = None
        if address is None:
            self.folder = tempfile.TemporaryDirectory(prefix="isolator-ray-")
            # The process ends with the thread that has started it, so one thread does that for as long as this lives.
            self.thread = threading.Thread(target=self._keep, daemon=True)
            self.thread.start()

    def state(self):
        healthy, reason = self._is_ready()
        return {
            "address": self.address,
            "healthy": healthy,
            "reason": reason or self.reason,
            "load": self._load() if healthy else None,
            "pid": self.process.pid if self.process else None,
        }

    def stop(self):
        self.stopping.set()
        if self.thread:
            self.thread.join(STOP_S + HEALTH_S)

    def _keep(self):
        pause = PAUSE_S[0]
        while not self.stopping.is_set():
            began = time.monotonic()
            try:
                self._serve()
            except OSError as error:
                self.reason = str(error)
            self.address = self.admin = None
            pause = PAUSE_S[0] if time.monotonic() - began > PAUSE_S[1] else min(2 * pause, PAUSE_S[1])
            self.stopping.wait(pause)

    def _serve(self):
        """Starts it, and waits for its end."""
        config = self.config
        if config is None:
            config = os.path.join(self.folder.name, "config.json")
            with open(config, "w") as file:
                json.dump(SETTINGS, file)
        log = os.path.join(self.folder.name, "log")
        host = f"[{self.host}]" if ":" in self.host else self.host
        command = [*self.command, "--config", config, "serve", "--http", f"{host}:0", "--admin", "127.0.0.1:0", "--no-socket"]
        open(log, "w").close()
        # It appends, so that the file can be emptied.
        with open(log, "a") as written:
            self.process = process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=written, env=self.environment, preexec_fn=_end_with_parent
            )
        try:
            while process.poll() is None and not self.stopping.is_set():
                if self.address is None:
                    with open(log, errors="replace") as file:
                        said = file.read()
                    admin, url = re.search(r'admin="([^"]+)"', said), re.search(r'listening.*url="([^"]+)/mcp"', said)
                    self.admin = admin and admin[1]
                    self.address = url and url[1]
                elif os.path.getsize(log) > MOST_LOG:
                    os.truncate(log, 0)
                time.sleep(LOOK_S)
            if not self.stopping.is_set():
                with open(log, errors="replace") as file:
                    self.reason = f"it has ended with {process.returncode}: {file.read()[-2000:]}"
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _is_ready(self):
        if self.address is None:
            return False, "it is starting"
        try:
            with urllib.request.urlopen(f"{self.address}/readyz", timeout=HEALTH_S) as answer:
                return answer.status == 200, None
        except urllib.error.HTTPError as error:
            return False, error.read(500).decode(errors="replace")
        except OSError as error:
            return False, str(error)

    def _load(self):
        """Programs that run and wait, as a share of those that can run at once; None where no metrics are known."""
        if self.admin is None:
            return None
        admin = self.admin if "://" in self.admin else f"http://{self.admin}"
        try:
            with urllib.request.urlopen(f"{admin}/metrics", timeout=HEALTH_S) as answer:
                found = re.search(r"^isolator_load (\S+)$", answer.read(1 << 22).decode(), re.MULTILINE)
        except OSError:
            return None
        return float(found[1]) if found else None


def _end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
