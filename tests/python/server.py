"""A server under test, with a state directory of its own, so that what it made can be told apart."""

import os
import re
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import engine
from anyio.streams.text import TextReceiveStream
from mcp import Client, StdioServerParameters
from mcp.client.stdio import get_default_environment

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ISOLATOR_BIN") or str(ROOT / "target/release/isolator")
CONFIG = ROOT / "isolator_config.json"

# What a host takes from its own environment and a server on another engine needs.
_PASSED_ON = ["XDG_DATA_HOME", "DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "RUST_LOG"]


class Isolator:
    """A running server and its client."""

    def __init__(self, client, state, instance):
        self.client = client
        self.instance = instance
        self.pid = _process_with(f"XDG_STATE_HOME={state}")

    async def call(self, **arguments):
        return await self.client.call_tool("execute_code", arguments)


@asynccontextmanager
async def isolator(state, mode="auto", config=CONFIG, transport="stdio"):
    """Starts a server, and asserts after its end that nothing of it is left."""
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment["XDG_STATE_HOME"] = str(state)
    arguments = ["--engine", engine.KIND, "--config", str(config), "serve"]
    before = _instances(state)
    async with TRANSPORTS[transport](arguments, environment) as place:
        async with Client(place, mode=mode, read_timeout_seconds=60) as client:
            (instance,) = _instances(state) - before
            server = Isolator(client, state, instance)
            yield server
    # It was waited for, so there is nothing to wait for.
    assert not Path(f"/proc/{server.pid}").exists(), "the server still runs"
    assert engine.left(server.instance, state) == []


@asynccontextmanager
async def _stdio(arguments, environment):
    """What the client starts and ends by itself."""
    yield StdioServerParameters(command=BINARY, args=arguments, env=environment)


@asynccontextmanager
async def _http(arguments, environment):
    """A server that listens at any free port."""
    command = [BINARY, *arguments, "--http", "127.0.0.1:0"]
    # What the client gives a server that it starts itself.
    environment = get_default_environment() | environment
    async with await anyio.open_process(command, env=environment, stdin=subprocess.DEVNULL) as process:
        log = TextReceiveStream(process.stderr)
        said = ""
        with anyio.fail_after(30):
            while not (url := re.search(r'url="([^"]+)"', said)):
                said += await log.receive()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_drain, log)
            yield url[1]
            process.terminate()
            assert await process.wait() == 0


async def _drain(log):
    """Reads what nobody wants to know, for the server not to be kept from saying it."""
    async for _ in log:
        pass


TRANSPORTS = {"stdio": _stdio, "http": _http}


async def until(condition, seconds, what):
    """Waits for the condition, and fails after so many seconds."""
    with anyio.move_on_after(seconds):
        while not condition():
            await anyio.sleep(0.1)
        return
    raise AssertionError(f"not within {seconds} s: {what}")


def _instances(state):
    """The instances that have a lock file; its name is what is on the labels."""
    return {lock.stem for lock in state.glob("isolator/instances/*.lock")}


def _process_with(variable):
    """The process that has this in its environment."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    found = {pid for pid in pids if variable.encode() in _environment(pid)}
    # A child of the server's has its environment until it is another program.
    (pid,) = [pid for pid in found if _parent(pid) not in found]
    return pid


def _parent(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _environment(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
