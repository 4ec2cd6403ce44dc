"""The same traffic to two servers for long: one as shipped, and one with everything on that operators have.

The second has its configuration loaded again each minute, pools whose size follows demand and which `isolator tune` sizes in
between, metrics that are read each second, traces that are sent, and an audit log. Each program goes to both servers, one after
the other, and prints a number that has to come back. In the end no answer is lost or wrong, the medians are close to each
other, the second's memory has not grown, and the counts of its metrics, its audit log and its traces are those of the calls.
Nothing else should run on the machine.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import engine
import processes
from mcp import Client
from operators import admin_of, asked, values
from server import BINARY, WAITS, configuration, listening, process_with, receipt
from soak import TUNABLES, duration

CLIENTS = 3
# Between two programs of a client. On average about half of the time of two cores is used.
PAUSE_S = (0.05, 0.5)
SCRAPE_S = 1
RELOAD_S = 60
# So many reloads come between two runs of `isolator tune`.
TUNE_EVERY = 5
MEMORY_S = 10

# What everything together may add to a call at the median, in milliseconds, and to the memory in the second half, as a share.
SLOWER_MS = 1
GROWN = 0.05

PROGRAMS = {
    "hello": ("python", "print({number})", 10),
    "pandas": ("python", "import pandas as pd; print(pd.Series([{number}]).sum())", 3),
    "javascript": ("javascript", "console.log({number})", 4),
    "fails": ("python", "print({number}); raise SystemExit(3)", 1),
    "go": ("go", 'package main\nimport "fmt"\nfunc main() {{ fmt.Println({number}) }}', 0.2),
}

POOL = {"size": {"min": 2, "max": 8}, "hot": 1}


class Collector:
    """Takes traces, and counts what comes."""

    def __init__(self):
        outer = self
        self.requests = 0
        self.bytes = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                outer.bytes += len(self.rfile.read(int(self.headers["content-length"])))
                outer.requests += 1
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @contextmanager
    def running(self):
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{self.server.server_port}"
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()


class Served:
    """One of the servers, with what it has answered."""

    def __init__(self, name, url, folder, said):
        self.name, self.url, self.folder, self.said = name, url, folder, said
        self.pid = process_with(f"XDG_STATE_HOME={folder}")
        self.took = defaultdict(list)
        self.starts = Counter()
        self.calls = 0
        self.wrong = []
        self.memory = []

    async def ask(self, client, kind, number):
        language, code, _ = PROGRAMS[kind]
        arguments = {"language": language, "entrypoint_code": code.format(number=number)}
        began = time.perf_counter()
        self.calls += 1
        try:
            result = await client.call_tool("execute_code", arguments, meta=WAITS)
            printed = (result.structured_content or {}).get("stdout")
            if printed != f"{number}\n":
                self.wrong.append(f"{kind} {number}: {result.content[0].text[:300]}")
            else:
                self.starts[receipt(result)["start"]] += 1
        except Exception as error:
            self.wrong.append(f"{kind} {number}: {type(error).__name__}: {error}")
        self.took[kind].append(time.perf_counter() - began)


@asynccontextmanager
async def served(name, folder, settings, started_by=()):
    folder.mkdir()
    config = configuration(folder, **settings)
    path = folder / "log"
    with path.open("w") as log:
        async with listening(folder, config, log, started_by) as url:

            def said():
                if not log.closed:
                    log.flush()
                return path.read_text()

            yield Served(name, url, folder, said)


class Run:
    def __init__(self, plain, operated, admin, seconds, seed):
        self.servers = [plain, operated]
        self.operated, self.admin = operated, admin
        self.random = random.Random(seed)
        self.until = time.monotonic() + seconds
        self.counts = Counter()
        self.scrapes = []
        self.number = 0

    def is_over(self):
        return time.monotonic() > self.until

    async def client(self):
        plain, operated = self.servers
        async with Client(plain.url) as first, Client(operated.url) as second:
            pairs = [(plain, first), (operated, second)]
            kinds = list(PROGRAMS)
            weights = [PROGRAMS[kind][2] for kind in kinds]
            while not self.is_over():
                (kind,) = self.random.choices(kinds, weights)
                self.number += 1
                number = self.number
                self.random.shuffle(pairs)
                for server, client in pairs:
                    await server.ask(client, kind, number)
                await anyio.sleep(self.random.uniform(*PAUSE_S))

    async def reload(self):
        """Loads a configuration again that is another one each time, and now and then one that is wrong."""
        path = self.operated.folder / "config.json"
        while True:
            await anyio.sleep(RELOAD_S)
            self.counts["reloads"] += 1
            count = self.counts["reloads"]
            if count % TUNE_EVERY == 0:
                command = [BINARY, "--config", path, "tune", self.admin.removeprefix("http://"), "--write"]
                tuned = await anyio.run_process([str(part) for part in command], check=False)
                self.counts["tuned" if tuned.returncode == 0 else "tune failed"] += 1
                if tuned.returncode != 0:
                    print(tuned.stderr.decode(), flush=True)
            else:
                config = json.loads(path.read_text())
                config["requests"]["maxQueue"] = 256 + count % 2
                config["languageSettings"]["go"]["enabled"] = True
                config["languageSettings"]["javascript"]["memoryMB"] = 256 + count % 2
                path.write_text(json.dumps(config))
            os.kill(self.operated.pid, signal.SIGHUP)

    async def scrape(self):
        while True:
            began = time.perf_counter()
            status, _, _ = await asked(f"{self.admin}/metrics")
            assert status == 200
            self.scrapes.append(time.perf_counter() - began)
            await anyio.sleep(SCRAPE_S)

    async def watch_memory(self):
        while True:
            for server in self.servers:
                server.memory.append(processes.status(server.pid, "VmRSS"))
            await anyio.sleep(MEMORY_S)

    async def run(self):
        async with anyio.create_task_group() as background:
            for work in (self.reload, self.scrape, self.watch_memory):
                background.start_soon(work)
            async with anyio.create_task_group() as clients:
                for _ in range(CLIENTS):
                    clients.start_soon(self.client)
            background.cancel_scope.cancel()
        # The last lines and spans are on their way.
        await anyio.sleep(6)


def grown(memory):
    """How much more the last quarter of the time has than the second one, as a share."""
    quarter = max(1, len(memory) // 4)
    return statistics.median(memory[-quarter:]) / statistics.median(memory[quarter : 2 * quarter]) - 1


def report(run, metrics, lines, collector):
    """Prints what was seen, and returns what must not be."""
    plain, operated = run.servers
    broken = []
    print(f"{operated.calls} calls to each of two servers, {sum(run.counts.values())} other things: {dict(run.counts)}")
    for kind in PROGRAMS:
        one, other = plain.took[kind], operated.took[kind]
        if len(one) < 10:
            continue
        medians = [statistics.median(took) * 1000 for took in (one, other)]
        slow = [statistics.quantiles(took, n=100)[-1] * 1000 for took in (one, other)]
        print(f"{kind:12} {len(one):6} calls, median {medians[0]:7.2f} → {medians[1]:7.2f} ms, p99 {slow[0]:8.2f} → {slow[1]:8.2f} ms")
        if kind == "hello" and medians[1] - medians[0] > SLOWER_MS:
            broken.append(f"{kind} is {medians[1] - medians[0]:.2f} ms slower at the median")
    for server in run.servers:
        more = grown(server.memory)
        print(f"{server.name:12} memory {server.memory[0]} → {server.memory[-1]} KiB, grown by {more:.1%}; log {len(server.said())} bytes")
        if more > GROWN:
            broken.append(f"{server.name}: memory has grown by {more:.1%}")
        ready = server.starts["hot"] + server.starts["warm"]
        print(f"{server.name:12} {ready / max(1, server.calls):.2%} of the calls found a sandbox ready: {dict(server.starts)}")
        broken += [f"{server.name}: {wrong}" for wrong in server.wrong[:20]]
    scrapes = statistics.quantiles(run.scrapes, n=100)
    print(f"{len(run.scrapes)} scrapes, median {scrapes[49] * 1000:.1f} ms, p99 {scrapes[98] * 1000:.1f} ms")
    counted = sum(value for name, value in metrics.items() if name.startswith("isolator_executions_total"))
    print(f"metrics count {counted:.0f} programs, the audit log has {lines} lines, the collector got {collector.requests} requests, {collector.bytes} bytes")
    if counted != operated.calls:
        broken.append(f"metrics count {counted:.0f} programs of {operated.calls}")
    if lines != operated.calls:
        broken.append(f"the audit log has {lines} lines for {operated.calls} calls")
    if collector.requests == 0:
        broken.append("no trace has come")
    if run.counts["tune failed"] or (run.counts["reloads"] >= TUNE_EVERY and not run.counts["tuned"]):
        broken.append(f"isolator tune failed {run.counts['tune failed']} times")
    return broken


async def main_async(options, folder):
    audit = folder / "audit.jsonl"
    collector = Collector()
    with collector.running() as otlp:
        traced = ["env", f"OTEL_EXPORTER_OTLP_ENDPOINT={otlp}", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"]
        settings = {"admin": {"address": "127.0.0.1:0"}, "audit": {"path": str(audit)}, "pool": POOL}
        async with (
            served("as shipped", folder / "plain", {}) as plain,
            served("operated", folder / "operated", settings, traced) as operated,
        ):
            admin = await admin_of(operated.said)
            run = Run(plain, operated, admin, options.time, options.seed)
            await run.run()
            metrics = values((await asked(f"{admin}/metrics"))[2])
    lines = sum(len(path.read_text().splitlines()) for path in folder.glob("audit.jsonl*"))
    return report(run, metrics, lines, collector)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time", type=duration, default="1h", help="such as 90s, 20m or 8h")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"{engine.KIND} for {options.time:.0f} s, seed {options.seed}", flush=True)
    os.environ["GLIBC_TUNABLES"] = TUNABLES
    with tempfile.TemporaryDirectory() as folder:
        broken = anyio.run(main_async, options, Path(folder))
    sys.exit("\n".join(broken) or None)


if __name__ == "__main__":
    main()
