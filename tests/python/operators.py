"""A server with the listener for operators, and a Prometheus that reads it."""

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlencode

import anyio
from faults import configuration
from server import BINARY, listening, until

ANY_PORT = "127.0.0.1:0"


@asynccontextmanager
async def operated(folder, **settings):
    """A server over HTTP, at its address, that operators reach, and its log."""
    settings = {"admin": {"address": ANY_PORT}} | settings
    config = configuration(folder, **settings)
    path = folder / "log"
    with path.open("w") as log:
        async with listening(folder, config, log) as url:

            def said():
                log.flush()
                return path.read_text()

            yield url, await admin_of(said), said


async def admin_of(said):
    """Where a server with this log listens for operators."""
    with anyio.fail_after(30):
        while not (found := re.search(r'admin="([^"]+)"', said())):
            await anyio.sleep(0.05)
    return found[1]


def get(url, timeout=10, **headers):
    """Asks, and returns status, media type and text."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.headers["content-type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["content-type"], error.read().decode()


async def asked(url, **headers):
    """The same without holding up what else runs here."""
    return await anyio.to_thread.run_sync(lambda: get(url, **headers))


def values(text):
    """The values of metrics in the text format, by their names with labels."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def check(text):
    """The findings of the checker of Prometheus."""
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    return checked.returncode, checked.stdout + checked.stderr


def first_line(admin, *arguments):
    """The beginning of `isolator status`."""
    command = [BINARY, "status", admin.removeprefix("http://"), *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True, timeout=30).stdout.splitlines()[0]


def free_port():
    """A port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


class Prometheus:
    """One that scrapes a server each second."""

    def __init__(self, url):
        self.url = url

    def query(self, query):
        """The values that a query has now, by their labels."""
        _, _, text = get(f"{self.url}/api/v1/query?{urlencode({'query': query})}")
        answer = json.loads(text)
        assert answer["status"] == "success", answer
        ignored = {"instance", "job", "__name__"}
        labels = [{name: text for name, text in one["metric"].items() if name not in ignored} for one in answer["data"]["result"]]
        found = [float(one["value"][1]) for one in answer["data"]["result"]]
        return [(tuple(sorted(label.items())), value) for label, value in zip(labels, found, strict=True)]

    def sum(self, query):
        """The one value of a query."""
        found = self.query(f"sum({query})")
        return found[0][1] if found else 0.0


@asynccontextmanager
async def prometheus(folder, admin, rules=()):
    """Starts one, which also evaluates rules."""
    target = admin.removeprefix("http://")
    scraped = {"job_name": "isolator", "static_configs": [{"targets": [target]}]}
    config = folder / "prometheus.json"
    # JSON is YAML.
    seconds = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    written = {"global": seconds, "scrape_configs": [scraped], "rule_files": [str(rule) for rule in rules]}
    config.write_text(json.dumps(written))
    port = free_port()
    command = [shutil.which("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "prometheus.log").open("w") as log:
        process = await anyio.open_process(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        async with process:
            try:
                url = f"http://127.0.0.1:{port}"
                await until(lambda: _is_ready(url), 60, "a Prometheus that is ready")
                yield Prometheus(url)
            finally:
                process.terminate()
                await process.wait()


def _is_ready(url):
    try:
        return get(f"{url}/-/ready")[0] == 200
    except OSError:
        return False


def another_place():
    """An address of this machine as others call it. To a server, all loopback addresses are one place."""
    table = Path("/proc/net/fib_trie").read_text()
    own = re.findall(r"\|-- ([\d.]+)\n\s+/32 host LOCAL", table)
    return next(address for address in own if not address.startswith("127."))


@contextmanager
def hanging(admin, count):
    """Connections that have asked for metrics and read nothing."""
    host, port = admin.removeprefix("http://").split(":")
    connections = []
    try:
        for _ in range(count):
            connection = socket.create_connection((host, int(port)))
            connections.append(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            # More than the kernel takes.
            connection.sendall(f"GET /metrics HTTP/1.1\r\nhost: {host}\r\n\r\n".encode() * 400)
        yield
    finally:
        for connection in connections:
            connection.close()
