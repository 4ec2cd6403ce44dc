"""Runs the checks of a framework and prints one JSON object with the versions and what became of each check."""

import asyncio
import json
import os
import traceback
from importlib.metadata import version

# No check takes longer, unless an answer does not come.
WITHIN_S = 120


async def outcome(check):
    try:
        async with asyncio.timeout(WITHIN_S):
            await check()
    except Exception as error:
        if "CHECKS_DEBUG" in os.environ:
            traceback.print_exc()
        text = str(error).splitlines() or [""]
        return f"fails: {type(error).__name__}: {text[0][:300]}"
    return "works"


async def outcomes(checks):
    return {check.__name__: await outcome(check) for check in checks}


def main(checks, *packages):
    found = asyncio.run(outcomes(checks))
    print(json.dumps({"versions": {name: version(name) for name in packages}, "checks": found}))
