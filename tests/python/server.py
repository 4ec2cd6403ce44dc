"""A server under test, with its own state directory, so that what it creates can be identified."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import engine
from anyio.streams.text import TextReceiveStream
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ISOLATOR_BIN") or str(ROOT / "target/release/isolator")
# What is shipped. Its servers import pandas ahead.
CONFIG = ROOT / "isolator_config.json"

# How a client reaches a server: the transport, and what it speaks. "auto" asks the server and gets the stateless
# protocol; "legacy" is the handshake that most hosts still begin with.
KINDS = ["stdio-auto", "stdio-legacy", "http-auto", "http-legacy"]

# What tests change of the shipped configuration. Importing modules ahead costs a second for each sandbox, and few tests
# need it.
_CHANGES = {"promptsDir": str(ROOT / "prompts"), "languageSettings": {"python": {"preload": {"modules": []}}}}

# What a host takes from its own environment, what a server on another engine needs, what a long run tells the allocator, and what
# the tools read that build sets of packages.
_PASSED_ON = [
    "HOME",
    "PATH",
    "XDG_DATA_HOME",
    "DOCKER_HOST",
    "DOCKER_TLS_VERIFY",
    "DOCKER_CERT_PATH",
    "RUST_LOG",
    "GLIBC_TUNABLES",
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_HTTP_RETRIES",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "npm_config_registry",
    "npm_config_fetch_retries",
]


class Isolator:
    """A running server and its client."""

    def __init__(self, client, kind, state, instance):
        self.client = client
        self.mode = kind.partition("-")[2]
        self.instance = instance
        self.pid = process_with(f"XDG_STATE_HOME={state}")

    async def call(self, **arguments):
        return await self.client.call_tool("execute_code", arguments)

    def sandboxes(self):
        """The identifiers of its sandboxes."""
        return {sandbox.id for sandbox in engine.sandboxes(self.instance)}


# What a call's `_meta` says if its caller waits until the program has ended.
WAITS = {"isolator/detach": False}


def receipt(result):
    """How a call was served."""
    return result.meta["isolator/receipt"]


def configuration(folder, **settings):
    """Writes a configuration into a folder: the shipped one with what tests change, and what is given."""
    config = json.loads(CONFIG.read_text())
    path = folder / "config.json"
    path.write_text(json.dumps(_merged(_merged(config, _CHANGES), settings)))
    return path


def _merged(base, changes):
    """One JSON value with another in it, which wins."""
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return changes
    return base | {key: _merged(base.get(key), value) for key, value in changes.items()}


def command(config):
    """The command that starts a server on standard input and output."""
    return [BINARY, "--engine", engine.KIND, "--config", str(config), "serve"]


def environment(state):
    """The environment of a server."""
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return passed_on | {"XDG_STATE_HOME": str(state)}


def tokens(*names):
    """Lines of a token file, and the tokens."""
    made = [subprocess.run([BINARY, "token", name], capture_output=True, text=True, check=True) for name in names]
    return [it.stdout for it in made], [re.search(r"isolator_\w+", it.stderr)[0] for it in made]


@asynccontextmanager
async def isolator(state, kind, config, on_message=None, log=sys.stderr):
    """Starts a server, and asserts after its end that nothing of it is left."""
    transport, mode = kind.split("-")
    before = instances(state)
    async with TRANSPORTS[transport](command(config), environment(state), log) as place:
        async with Client(place, mode=mode, read_timeout_seconds=60, message_handler=on_message) as client:
            (instance,) = instances(state) - before
            server = Isolator(client, kind, state, instance)
            yield server
    # The block above has waited for its end.
    assert not Path(f"/proc/{server.pid}").exists(), "the server still runs"
    assert engine.left(server.instance, state) == []


@asynccontextmanager
async def shared(context):
    """The value of a context, for a fixture that many tests share. It lives in its own task: fixtures don't always end in the
    reverse order of their beginning, and cancel scopes of one task must."""
    began, ends = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def hold():
        async with context as value:
            began.set_result(value)
            await ends.wait()

    task = asyncio.create_task(hold())
    await asyncio.wait({task, began}, return_when=asyncio.FIRST_COMPLETED)
    if not began.done():
        await task
    try:
        yield began.result()
    finally:
        ends.set()
        await task


@asynccontextmanager
async def listening(state, config, log=sys.stderr, started_by=(), at="127.0.0.1:0"):
    """The address of a server that clients reach over HTTP. It can be started by another command."""
    async with _http([*started_by, *command(config)], environment(state), log, at) as url:
        yield url


@asynccontextmanager
async def _stdio(command, environment, log):
    """A server that the client starts and ends by itself."""
    yield stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=environment), log)


@asynccontextmanager
async def _http(command, environment, log, at="127.0.0.1:0"):
    """A server that listens, by default at any free port."""
    command = [*command, "--http", at]
    async with await anyio.open_process(command, env=environment, stdin=subprocess.DEVNULL) as process:
        stream = TextReceiveStream(process.stderr)
        said = ""
        with anyio.fail_after(30):
            while not (url := re.search(r'url="([^"]+)"', said)):
                said += await stream.receive()
        log.write(said)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_pass_on, stream, log)
            try:
                yield url[1]
            finally:
                # It is waited for, whatever became of the test, which may have ended it.
                # (Its own `terminate` would take the exit code away from `wait` then.)
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)
            assert await process.wait() == 0


async def _pass_on(stream, log):
    """Reads the log of the server, so that the server is not blocked."""
    async for text in stream:
        log.write(text)


TRANSPORTS = {"stdio": _stdio, "http": _http}


async def until(condition, seconds, what):
    """Waits for the condition, and fails after these seconds."""
    with anyio.move_on_after(seconds):
        while not condition():
            await anyio.sleep(0.1)
        return
    raise AssertionError(f"not within {seconds} s: {what}")


def instances(state):
    """The instances that have a lock file; its name is what is on the labels."""
    return {lock.stem for lock in state.glob("isolator/instances/*.lock")}


def process_with(variable):
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
