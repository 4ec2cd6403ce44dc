"""What every client does with the server, and how its answers are judged.

Each script beside this file drives one framework: `with_NAME.py [URL]` starts `isolator serve` from the PATH, or takes
the address of a server. It prints one JSON object with the versions and what became of each check in `checks.json`:
"works", "not offered", or "fails: …". The scripts for Node.js have the same in `node/checks.mjs`.
"""

import asyncio
import json
import os
import re
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

CHECKS = json.loads(Path(__file__).with_name("checks.json").read_text())
# How long a call may take. All of them are short.
WITHIN_S = 30
# When a call is cancelled: it has to be running by then, and not yet answered with a handle.
CANCELLED_AFTER_S = 1
HANDLE = re.compile(r"\b[0-9a-f]{32}\b")


@dataclass
class Told:
    """What the model is told of a call: all of the text, and how many pictures it can see."""

    text: str
    pictures: int = 0


class Failed(Exception):
    """A check that has failed. Its text says how."""


async def told(client, tool, arguments):
    """Has the model call a tool. A call must not end the agent's run, whatever comes of it."""
    try:
        answer = await asyncio.wait_for(client.ask(tool, arguments), WITHIN_S)
    except TimeoutError:
        raise Failed("there is no answer") from None
    except Exception as error:
        debug(repr(error))
        raise Failed(f"the run ends with {type(error).__name__}") from error
    debug(f"{tool}: {answer.text[:600]}\n[{answer.pictures} pictures]")
    return answer


def debug(text):
    if "CHECKS_DEBUG" in os.environ:
        print(text, file=sys.stderr)


def expect(what, patterns, text):
    missing = [pattern for pattern in patterns if not re.search(pattern, text)]
    if missing:
        raise Failed(f"{what} {missing[0]}")


async def call(client, name):
    """Runs what a check says, and returns what the model is told."""
    check = CHECKS[name]
    answer = await told(client, "execute_code", check["arguments"])
    expect("the model is not told", check.get("told", []), answer.text)
    if answer.pictures < check.get("pictures", 0):
        raise Failed("the model sees no picture")
    return answer


async def detached(client):
    """A long run is answered with a handle, and its result is fetched with that."""
    answer = await call(client, "detached")
    handle = HANDLE.search(answer.text)
    for _ in range(5):
        answer = await told(client, "get_result", {"handle": handle[0]})
        if re.search(CHECKS["detached"]["later"], answer.text):
            return
    raise Failed("the result does not come")


async def resources(client):
    """What was too long for the answer is read by its address."""
    if not hasattr(client, "read"):
        return "not offered"
    answer = await call(client, "resources")
    uri = re.search(r"isolator://runs/[\w./-]+", answer.text)[0]
    try:
        text = await asyncio.wait_for(client.read(uri), WITHIN_S)
    except Exception as error:
        debug(repr(error))
        raise Failed(f"reading ends with {type(error).__name__}") from error
    expect("it does not contain", [CHECKS["resources"]["read"]], text)


async def cancel(client):
    """A call that is cancelled ends its program, so that the next one gets the server's only slot."""
    if not getattr(client, "cancels", True):
        return "not offered"
    running = asyncio.create_task(client.ask("execute_code", CHECKS["cancel"]["arguments"]))
    await asyncio.sleep(CANCELLED_AFTER_S)
    if running.done():
        raise Failed("the call has an answer already")
    running.cancel()
    await asyncio.wait([running], timeout=WITHIN_S)
    try:
        await asyncio.wait_for(call(client, "hello"), 5)
    except (TimeoutError, Failed):
        raise Failed("the program goes on") from None


SPECIAL = {"detached": detached, "resources": resources, "cancel": cancel}


async def check(client, name):
    try:
        return await (SPECIAL[name](client) if name in SPECIAL else call(client, name))
    except Failed as failed:
        return f"fails: {failed}"


async def check_all(connect, url):
    wanted = os.environ.get("CHECKS", " ".join(CHECKS)).split()
    outcomes = {}
    async with connect(url) as client:
        for name in wanted:
            debug(f"--- {name}")
            outcome = await check(client, name)
            outcomes[name] = outcome if isinstance(outcome, str) else "works"
    return outcomes


def main(connect, *packages):
    """Runs all checks with a client, which `connect` gives, and prints what has become of them."""
    url = sys.argv[1] if len(sys.argv) > 1 else None
    outcomes = asyncio.run(check_all(connect, url))
    print(json.dumps({"versions": {name: version(name) for name in packages}, "checks": outcomes}))
