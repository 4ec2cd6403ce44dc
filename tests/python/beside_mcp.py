"""The same programs over MCP and over the APIs for computing rewards, in one run on one machine, and a large batch of which a tenth
is bad.

    scripts/python tests/python/beside_mcp.py [--seconds 3] [--batch 1000]

The exit status is 1 if a verdict is wrong. Each client has a connection, which it keeps, and sends a program as soon as the last one is answered. The three take turns. Nothing
else should run on the machine: the clients run on it, too.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

import anyio
import apis
from apis import connected, judge_all, judged_by_fusion, judged_by_piston, serving
from by_hand import CLIENT, MODERN, python

HELLO = "print('hello')"
PANDAS = "import pandas as pd\nprint(pd.DataFrame({'a': [1, 2, 3]}).a.sum())"
CLIENTS = [1, 4, 64]
ROUNDS = 3
HEADERS = {
    "accept": "application/json, text/event-stream",
    "mcp_protocol_version": MODERN,
    "mcp_method": "tools/call",
    "mcp_name": "execute_code",
}
# As many as run at a time on a server for batches: the programs wait as well as compute.
RUNNING = {"maxRunning": 16, "maxRunningPerClient": 16, "maxQueue": 2048}


async def over_mcp(connection, code):
    message = python(1, code)
    message["params"]["_meta"] = CLIENT
    answer = await connection.post("/mcp", message, **HEADERS)
    assert answer.status == 200 and not answer.json["result"]["isError"], answer.body


async def over_fusion(connection, code):
    answer = await connection.post("/run_code", {"code": code, "language": "python"})
    assert answer.status == 200 and answer.json["status"] == "Success", answer.body


async def over_piston(connection, code):
    request = {"language": "python", "version": "*", "files": [{"content": code}]}
    answer = await connection.post("/api/v2/execute", request)
    assert answer.status == 200 and answer.json["run"]["code"] == 0, answer.body


WAYS = {"MCP": over_mcp, "/run_code": over_fusion, "/execute": over_piston}


async def measure(place, way, code, clients, seconds):
    """The times of all requests in so many seconds."""
    times = []

    async def work(until):
        async with connected(place) as connection:
            while (began := anyio.current_time()) < until:
                await way(connection, code)
                times.append(anyio.current_time() - began)

    async with anyio.create_task_group() as tasks:
        until = anyio.current_time() + seconds
        for _ in range(clients):
            tasks.start_soon(work, until)
    return times


def figures(times, seconds):
    times = sorted(times)
    p50, p99 = (times[int(len(times) * part)] * 1e3 for part in (0.5, 0.99))
    return {"per_s": round(len(times) / seconds), "p50_ms": round(p50, 2), "p99_ms": round(p99, 2)}


async def side_by_side(place, name, code, clients, seconds):
    times = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, call in WAYS.items():
            times[way] += await measure(place, call, code, clients, seconds / ROUNDS)
            await anyio.sleep(0.2)
    for way, of_way in times.items():
        print(f"{name:7} {clients:3} clients  {way:10} {json.dumps(figures(of_way, seconds))}", flush=True)


async def batch(place, name, judge, number):
    programs = apis.batch(number)
    began = anyio.current_time()
    wrong, times = await judge_all(place, judge, programs, at_once=number)
    took = anyio.current_time() - began
    found = {"seconds": round(took, 1), "wrong": len(wrong)} | figures(times, took)
    print(f"{number} programs at once by {name}: {json.dumps(found)}", flush=True)
    for one in wrong[:5]:
        print(one)
    return not wrong


async def main(arguments):
    with tempfile.TemporaryDirectory() as folder:
        # As shipped: with pandas imported ahead.
        modules = {"python": {"preload": {"modules": ["numpy", "pandas"]}}}
        settings = {"requests": RUNNING, "languageSettings": modules, "defaultCpus": 1}
        async with serving(Path(folder), {"sandboxFusion": {}, "piston": {}}, **settings) as (place, _):
            await anyio.sleep(5)
            for name, code in [("hello", HELLO), ("pandas", PANDAS)]:
                for clients in CLIENTS if arguments.seconds else []:
                    await side_by_side(place, name, code, clients, arguments.seconds)
            if not arguments.batch:
                return True
            right = await batch(place, "a trainer (SandboxFusion)", judged_by_fusion, arguments.batch)
            return await batch(place, "an evaluator (Piston)", judged_by_piston, arguments.batch) and right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3, help="for each way, program and number of clients")
    parser.add_argument("--batch", type=int, default=1000, help="programs of a batch")
    sys.exit(0 if asyncio.run(main(parser.parse_args())) else 1)
