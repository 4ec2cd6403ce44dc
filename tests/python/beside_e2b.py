"""How long E2B's SDK takes with a server, and cells over MCP next to it, in one run on one machine.

    scripts/python tests/python/beside_e2b.py

The newest SDK for Python creates sandboxes, runs code and commands, and transfers files. Cells by the SDK, by plain requests to
`/execute` and over MCP take turns. At the end, a hundred sandboxes are opened and killed, and nothing may be left. Nothing else should
run on the machine: the clients run on it, too.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import anyio
import engine
from apis import connected, serving
from beside_mcp import HEADERS
from by_hand import CLIENT, python, request
from e2b_raw import Server
from server import ROOT, instances

KEY = "e2b_" + "0" * 40
ROUNDS = 3
CELLS = 100
SETTINGS = {
    "sessions": {"max": 200, "maxPerClient": 200, "memoryMB": 16384},
    "requests": {"maxRunning": 8, "maxRunningPerClient": 8},
    "defaultCpus": 1,
}


async def by_sdk(place, *steps):
    url = "http://%s:%d" % place
    variables = {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": KEY}
    script = [ROOT / "scripts/client", "--python", "e2b", ROOT / "tests/apis/e2b_times.py", *steps]
    ran = await anyio.run_process([str(part) for part in script], env=os.environ | variables, stderr=None)
    return json.loads(ran.stdout.splitlines()[-1])


async def timed(number, call):
    times = []
    for _ in range(number):
        began = anyio.current_time()
        await call()
        times.append((anyio.current_time() - began) * 1e3)
    return times


async def over_mcp(place):
    async with connected(place) as connection:

        async def call(message):
            message["params"]["_meta"] = CLIENT
            answer = await connection.post("/mcp", message, **HEADERS | {"mcp_name": message["params"]["name"]})
            assert answer.status == 200 and not answer.json["result"].get("isError"), answer.body
            return answer.json["result"]

        opened = await call(request(1, "tools/call", {"name": "open_session", "arguments": {"language": "python"}}))
        session = opened["structuredContent"]["session"]
        headers = {"mcp_param_session": session}

        async def cell():
            message = python(1, "1 + 1", session=session)
            message["params"]["_meta"] = CLIENT
            answer = await connection.post("/mcp", message, **HEADERS | headers)
            assert answer.status == 200 and not answer.json["result"].get("isError"), answer.body

        await timed(5, cell)
        times = await timed(CELLS, cell)
        await call(request(1, "tools/call", {"name": "close_session", "arguments": {"session": session}}))
        return times


def by_execute(place):
    """Times of cells by requests of plain HTTP, on one connection."""
    sandbox = Server("http://%s:%d" % place).create()
    connection = sandbox.server.connection()
    headers = sandbox.headers(content_type="application/json")
    times = []
    for _ in range(5 + CELLS):
        began = time.perf_counter()
        connection.request("POST", "/execute", json.dumps({"code": "1 + 1"}), headers)
        answer = connection.getresponse()
        lines = answer.read()
        times.append((time.perf_counter() - began) * 1e3)
        assert answer.status == 200 and b"end_of_execution" in lines, lines
    connection.close()
    assert sandbox.kill() == 204
    return times[5:]


def show(name, times):
    times = sorted(times)
    p50, p95 = (times[int(len(times) * part)] for part in (0.5, 0.95))
    print(f"{name:28} {p50:7.1f} ms, p95 {p95:7.1f} ms, least {times[0]:7.1f} ms (n = {len(times)})", flush=True)


async def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        async with serving(folder, {"e2b": {}}, **SETTINGS) as (place, _):
            (instance,) = instances(folder)
            await anyio.sleep(5)
            steps = await by_sdk(place, "starts", "commands", "files")
            cells = {"further run_code": [], "/execute": [], "a cell over MCP": []}
            for _ in range(ROUNDS):
                cells["further run_code"] += (await by_sdk(place, "cells"))["further run_code"]
                cells["/execute"] += await anyio.to_thread.run_sync(by_execute, place)
                cells["a cell over MCP"] += await over_mcp(place)
            many = await by_sdk(place, "many")
            for name, times in (steps | cells | many).items():
                show(name, times)
        left = engine.left(instance, folder)
    print(f"left after the end: {len(left)}")
    return not left


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
