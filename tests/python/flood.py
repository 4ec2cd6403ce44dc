"""Messages that are made to take much memory, from eight clients at once for a long time, beside one that wants answers.

Each client has a token of its own, and sends one message after the other without a pause. What the server holds is
seen every second. At the end each message was answered, the client beside them was answered in time, and the server
held no more than its budget for messages allows.
"""

import argparse
import collections
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import anyio
import engine
import processes
from by_hand import post
from server import configuration, listening, process_with, tokens
from soak import duration
from test_messages import CODE, LARGE, MESSAGES, call

CLIENTS = 8
IN_FLIGHT_MB = 128

# A message takes at most four times what it counts towards the budget.
MOST_TIMES = 4

# Longest time for the client beside them, which a machine with few cores shares with the others.
PATIENCE_S = 20


class Flood:
    def __init__(self, url, tokens, ends):
        self.url = url
        self.tokens = tokens
        self.ends = ends
        self.statuses = collections.Counter()
        self.wrong = collections.Counter()
        self.waits = []
        self.held = []

    def is_over(self):
        return time.monotonic() > self.ends

    async def client(self, number):
        """One of the eight."""
        chosen = random.Random(number)
        while not self.is_over():
            name = chosen.choice(list(MESSAGES))
            message, words = MESSAGES[name]
            try:
                with anyio.fail_after(120):
                    status, answer = await post(self.url, message, token=self.tokens[number])
            except (OSError, anyio.BrokenResourceError, IndexError):
                # The server may close the connection of a message that it has no room for while it is still sent.
                self.statuses["closed"] += 1
                continue
            self.statuses[status] += 1
            if status != 503 and words not in answer.decode():
                self.wrong[name] += 1
            if status == 503:
                await anyio.sleep(1)

    async def beside(self):
        """The client that wants answers."""
        while not self.is_over():
            began = time.monotonic()
            with anyio.fail_after(PATIENCE_S):
                status, answer = await post(self.url, call(CODE.replace("1", "6 * 7")), token=self.tokens[CLIENTS])
            self.waits.append(time.monotonic() - began)
            if status != 200 or "42" not in answer.decode():
                self.wrong["the client beside them"] += 1
            await anyio.sleep(0.5)

    async def watch(self, pid):
        while not self.is_over():
            self.held.append(processes.status(pid, "VmRSS") >> 10)
            await anyio.sleep(1)


async def flood(options, folder):
    lines, secrets = tokens(*(f"client-{number}" for number in range(CLIENTS)), "beside")
    (folder / "tokens").write_text("".join(lines))
    more = {"requests": {"maxInFlightMB": IN_FLIGHT_MB}, "limits": LARGE, "http": {"tokens": "tokens"}}
    async with listening(folder, configuration(folder, pool={"size": 2, "hot": 1}, **more)) as url:
        pid = process_with(f"XDG_STATE_HOME={folder}")
        it = Flood(url, secrets, time.monotonic() + options.time)
        async with anyio.create_task_group() as tasks:
            for number in range(CLIENTS):
                tasks.start_soon(it.client, number)
            tasks.start_soon(it.beside)
            tasks.start_soon(it.watch, pid)
        peak = processes.status(pid, "VmHWM") >> 10
        await anyio.sleep(5)
        left = processes.status(pid, "VmRSS") >> 10
    waits = sorted(it.waits)
    print(f"answers: {dict(it.statuses)}")
    print(f"the client beside them: {len(waits)} answers, median {statistics.median(waits) * 1000:.0f} ms, "
          f"p99 {waits[len(waits) * 99 // 100] * 1000:.0f} ms, longest {waits[-1] * 1000:.0f} ms")
    print(f"memory: at peak {peak} MiB, median {statistics.median(it.held)} MiB, 5 s after the end {left} MiB")
    wrong = [f"{name}: {count} wrong answers" for name, count in it.wrong.items()]
    if peak > MOST_TIMES * IN_FLIGHT_MB + 64:
        wrong.append(f"{peak} MiB at peak, for {IN_FLIGHT_MB} MiB of messages")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time", type=duration, default="20m", help="such as 90s, 20m or 8h")
    options = parser.parse_args()
    print(f"{engine.KIND}, {CLIENTS} clients for {options.time:.0f} s")
    with tempfile.TemporaryDirectory() as folder:
        wrong = anyio.run(flood, options, Path(folder))
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
