"""Public clients and agent frameworks, over each transport.

`tests/clients/expected.toml` lists what each of them can do. A difference is a fault, or a change to write there.
"""

import json
import os
import signal
import socket
import subprocess
import tomllib
from contextlib import suppress

import anyio
import pytest
import scope
from server import ROOT, command, configuration, environment, listening

pytestmark = pytest.mark.any_engine

FOLDER = ROOT / "tests/clients"
EXPECTED = tomllib.loads((FOLDER / "expected.toml").read_text())
TRANSPORTS = ["stdio", "http"]
# The official SDKs for TypeScript. Most others use the official client for Python, as all tests here do.
QUICK = ["sdk_1", "sdk_2"]
CLIENTS = list(EXPECTED) if scope.EVERYTHING else QUICK

# With a single slot, a program that goes on after its call was cancelled keeps all others waiting.
SETTINGS = {
    "pool": {"size": 1, "hot": 1},
    "languageSettings": {name: {"pool": {"size": 0, "hot": 0}} for name in ("javascript", "go")},
    "requests": {"maxRunning": 1, "maxRunningPerClient": 1},
    "results": {"detachAfter": "2s"},
}
# The first call of all has to install the client.
WITHIN_S = 600
AT_ONCE = 2


@pytest.fixture(scope="module")
async def outcomes(anyio_backend, tmp_path_factory):
    """The output of every client, by its name and transport. Several of them run at once."""
    outcomes = {}
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def run(client, transport):
        async with limiter:
            outcomes[client, transport] = await RUN[transport](client, tmp_path_factory.mktemp(client))

    async with anyio.create_task_group() as tasks:
        for client in CLIENTS:
            for transport in TRANSPORTS:
                tasks.start_soon(run, client, transport)
    return outcomes


async def over_stdio(client, folder):
    """Gives the client a command `isolator` that starts the server under test."""
    config = configuration(folder, **SETTINGS)
    variables = [f"{name}={value}" for name, value in environment(folder).items()]
    program = folder / "bin/isolator"
    program.parent.mkdir()
    # Its argument is `serve`, which ends the command already.
    program.write_text(f"#!/bin/sh\nexec env -i {subprocess.list2cmdline([*variables, *command(config)])}\n")
    program.chmod(0o755)
    return await printed(client, {"PATH": f"{program.parent}:{os.environ['PATH']}"})


async def over_http(client, folder):
    async with listening(folder, configuration(folder, **SETTINGS)) as url:
        return await printed(client, {}, url)


RUN = {"stdio": over_stdio, "http": over_http}


async def printed(client, variables, *arguments):
    with anyio.fail_after(WITHIN_S):
        result = await anyio.run_process(
            [str(ROOT / "scripts/client"), client, *arguments], check=False, env=os.environ | variables
        )
    assert result.returncode == 0, result.stderr.decode()
    # The frameworks may print something before.
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_does_what_its_table_says(outcomes, client, transport):
    expected = EXPECTED[client]
    checks = expected["checks"] | expected.get(transport, {})
    assert outcomes[client, transport] == {"versions": expected["versions"], "checks": checks}


@pytest.mark.parametrize("client", EXPECTED)
def test_the_page_about_clients_shows_the_code_that_was_tested(client):
    (script,) = [*FOLDER.glob(f"with_{client}.py"), *FOLDER.glob(f"node/{client}.mjs")]
    page = (ROOT / "docs/clients.md").read_text()
    example = marked(script)
    version = next(iter(EXPECTED[client]["versions"].values()))
    assert version in page, f"docs/clients.md does not name version {version} of {client}"
    assert f"\n{example}\n```\n" in page, f"docs/clients.md has no block with this part of {script}:\n{example}"


def marked(script):
    """The parts of a script between the comments `example` and `end`, moved to the left."""
    parts, part = [], None
    for line in script.read_text().splitlines():
        match line.strip(" #/"):
            case "example":
                part, indent = [], len(line) - len(line.lstrip())
            case "end" if part is not None:
                parts.append("\n".join(part))
                part = None
            case _ if part is not None:
                part.append(line[indent:])
    return "\n\n".join(parts)


async def test_a_signal_ends_a_server_whose_host_keeps_its_streams_open(tmp_path):
    """The streams are sockets, as Node.js makes them, and its hosts may wait for the end of the process."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        config = configuration(tmp_path, **SETTINGS)
        async with await anyio.open_process(
            command(config), env=environment(tmp_path), stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL
        ) as process:
            try:
                ours.sendall(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
                await anyio.to_thread.run_sync(ours.recv, 1)
                process.send_signal(signal.SIGTERM)
                with anyio.fail_after(30):
                    assert await process.wait() == 0
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
