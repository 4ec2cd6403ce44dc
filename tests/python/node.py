"""The official tools that are written for Node.js: the conformance suite, and Inspector's command line."""

import anyio
from server import ROOT

# The first call may have to install them.
WITHIN_S = 300


async def run(*arguments, **options):
    """Runs a tool, and returns its exit code and what it has printed."""
    command = [str(ROOT / "scripts/node"), *arguments]
    with anyio.fail_after(WITHIN_S):
        return await anyio.run_process(command, check=False, **options)
