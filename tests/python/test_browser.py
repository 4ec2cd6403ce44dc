"""Web pages in Chromium: one that the operator allows, and one that is not listed.

The page runs at a made-up name, which the browser is told is this machine. It calls the server with the browser's own
`fetch` and with the official client for JavaScript, and reports to the server of the page what it could read.
"""

import json
import re
import subprocess
import threading
import urllib.request
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlencode

import anyio
import node
import pytest
from server import BINARY, ROOT, configuration, listening

pytestmark = [pytest.mark.any_engine, pytest.mark.release]

MODULES = ROOT / "tests/node/node_modules"
PAGE = ROOT / "tests/python/browser/page.html"
# What a bundler for browsers would choose of each package.
IMPORTS = {
    "@modelcontextprotocol/client": "@modelcontextprotocol/client/dist/index.mjs",
    "@modelcontextprotocol/client/_shims": "@modelcontextprotocol/client/dist/shimsBrowser.mjs",
    "@modelcontextprotocol/core/internal": "@modelcontextprotocol/core/dist/internal.mjs",
    "eventsource": "eventsource/dist/index.js",
    "eventsource-parser": "eventsource-parser/dist/index.js",
    "eventsource-parser/stream": "eventsource-parser/dist/stream.js",
    "jose": "jose/dist/webapi/index.js",
    "pkce-challenge": "pkce-challenge/dist/index.browser.js",
    "zod/v4": "zod/v4/index.js",
}
WITHIN_S = 60


class Site:
    """The server of the page. It is at every name that leads here."""

    def __init__(self, port):
        self.port = port
        self.report = None
        self.reported = threading.Event()

    def origin(self, name):
        return f"http://{name}:{self.port}"


@contextmanager
def site():
    class Handler(SimpleHTTPRequestHandler):
        extensions_map = {".mjs": "text/javascript", ".js": "text/javascript", "": "application/octet-stream"}

        def __init__(self, *arguments):
            super().__init__(*arguments, directory=MODULES)

        def do_GET(self):
            if self.path.startswith("/?"):
                imports = {"imports": {name: f"/{path}" for name, path in IMPORTS.items()}}
                page = PAGE.read_text().replace("IMPORT_MAP", json.dumps(imports)).encode()
                self.send_response(200)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(page)
            else:
                super().do_GET()

        def do_POST(self):
            site.report = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()
            site.reported.set()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site = Site(server.server_port)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield site
        server.shutdown()


async def visit(folder, site, name, **parameters):
    """Opens the page at this name in a new browser, and returns its report."""
    command = [
        "chromium",
        "--headless",
        # The tests are root's on many machines, where Chromium has no sandbox.
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        f"--user-data-dir={folder / 'profile'}",
        f"--host-resolver-rules=MAP {name} 127.0.0.1",
        f"{site.origin(name)}/?{urlencode(parameters)}",
    ]
    log = (folder / "chromium.log").open("w+")
    async with await anyio.open_process(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as browser:
        reported = await anyio.to_thread.run_sync(site.reported.wait, WITHIN_S)
        browser.terminate()
    log.seek(0)
    assert reported, f"the page reported nothing within {WITHIN_S} s: {log.read()}"
    return site.report


def programs_run(url, token=None):
    """How many programs the server has run since it began."""
    version = "2026-07-28"
    meta = {"protocolVersion": version, "clientInfo": {"name": "test", "version": "1"}, "clientCapabilities": {}}
    params = {"uri": "isolator://pool", "_meta": {f"io.modelcontextprotocol/{key}": meta[key] for key in meta}}
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": version,
        "mcp-method": "resources/read",
        "mcp-name": "isolator://pool",
    }
    if token:
        headers["authorization"] = f"Bearer {token}"
    body = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": params}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    (content,) = json.load(urllib.request.urlopen(request))["result"]["contents"]
    pools = json.loads(content["text"])["pools"]
    return sum(sum(pool["starts"].values()) for pool in pools.values())


@pytest.fixture(scope="module")
async def modules():
    """The official client, which comes with the other tools."""
    await node.run("inspector", "--help")


async def test_an_allowed_page_calls_and_reads_everything(modules, tmp_path):
    made = subprocess.run([BINARY, "token", "page"], capture_output=True, check=True, text=True)
    (tmp_path / "tokens").write_text(made.stdout)
    token = re.search(r"isolator_[0-9a-f]{64}", made.stderr)[0]
    with site() as page:
        http = {"tokens": "tokens", "allowedOrigins": [page.origin("agent.example")]}
        config = configuration(tmp_path, http=http, pool={"size": 0, "hot": 0})
        async with listening(tmp_path / "state", config) as url:
            report = await visit(tmp_path, page, "agent.example", url=url, token=token)
            ran = programs_run(url, token)
    stranger = report["stranger"]
    assert stranger["status"] == 401 and stranger["challenge"].startswith("Bearer"), report
    session = report["session"]
    assert session["opened"]["status"] == 200 and session["opened"]["session"], report
    assert "42" in session["call"]["text"], report
    assert (session["closed"], session["gone"]) == (204, 404), report
    assert "42" in report["legacy"] and "42" in report["auto"], report
    assert ran == 3, report


async def test_an_unlisted_page_runs_nothing_and_reads_nothing(modules, tmp_path):
    """There are no tokens, so that only the page's origin is in its way."""
    with site() as page:
        http = {"allowedOrigins": ["http://agent.example:80"]}
        config = configuration(tmp_path, http=http, pool={"size": 0, "hot": 0})
        async with listening(tmp_path / "state", config) as url:
            report = await visit(tmp_path, page, "evil.example", url=url)
            ran = programs_run(url)
    for name in ["stranger", "session", "legacy", "auto"]:
        assert "Failed to fetch" in report[name], report
    for name in ["text/plain", "application/x-www-form-urlencoded", "get"]:
        # The browser sends these, and says nothing of the answer.
        seen = report[name]
        assert (seen["type"], seen["status"], seen["text"]) == ("opaque", 0, ""), report
    assert ran == 0, report
