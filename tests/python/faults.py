"""Servers for the tests of faults, and the rules that every answer and every server must keep."""

import json
import logging
import os
import shutil
import subprocess
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import engine
from processes import cpu_seconds
from programs import HELLO
from server import BINARY, WAITS, environment, isolator, until
from server import configuration as base_configuration

IMAGES = ["isolator/javascript", "isolator/python"]

# Sandboxes that wait at rest, one of them thawed.
POOLED = 2
NO_POOL = {"size": 0, "hot": 0}
FILLED_WITHIN_S = 60

# Hosts give a call up after this time.
ANSWERED_WITHIN_S = 60
# The longest pause of a pool that could not make a sandbox is half of it.
RECOVERED_WITHIN_S = 60

# What a server may cost and say during a fault: something for each thing that goes wrong, little for the time.
CPU_S = 0.5
CPU_SHARE = 0.05
LINES = 100
LINES_A_SECOND = 4

# The longest line that says what is wrong.
LONGEST_LINE = 800

FIGURES = logging.getLogger("figures")


def configuration(folder, languages=None, **settings):
    """Python alone, with a small pool, and what is different."""
    enabled = {language: {"enabled": language == "python"} for language in HELLO}
    settings = {"pool": {"size": POOLED, "hot": 1}, "images": {"policy": "never"}} | settings
    return base_configuration(folder, languageSettings=enabled | (languages or {}), **settings)


@asynccontextmanager
async def serving(state, folder=None, **settings):
    """A server whose log is kept, with its state or in another folder."""
    folder = folder or state
    path = folder / "log"
    with path.open("a") as log:
        async with isolator(state, "stdio-auto", configuration(folder, **settings), log=log) as server:
            server.log = path
            yield server


async def is_filled(server):
    """Waits until the pool is full and everything in it is where it shall be."""

    def check():
        states = [sandbox.state for sandbox in engine.sandboxes(server.instance)]
        return sorted(states) == ["paused"] * (POOLED - 1) + ["running"]

    await until(check, FILLED_WITHIN_S, "a full pool")


async def ask(server, code="print('x')", within=ANSWERED_WITHIN_S, language="python", **arguments):
    """Makes a call, which is answered in time: with an outcome, or with what is wrong."""
    began = time.monotonic()
    with anyio.fail_after(within):
        result = await server.call(language=language, entrypoint_code=code, **arguments)
    FIGURES.debug("answered after %.1f s: %s", time.monotonic() - began, head(result))
    if result.structured_content is None:
        check_refusal(result.content[0].text)
    return result


def head(result):
    """The line that says what became of a call."""
    return result.content[0].text.split("\n", 1)[0]


def check_refusal(text):
    """One line says what is wrong, and behind a blank one is what to do."""
    line, blank, advice = text.partition("\n\n")
    assert line.startswith("Sandbox error: ") and "\n" not in line, text
    assert len(line) <= LONGEST_LINE, text
    assert blank and advice.strip(), text


async def succeeds(server, code="print('x')", expected="x\n", **arguments):
    """A call that has to have its result."""
    result = await ask(server, code, **arguments)
    assert not result.is_error and result.structured_content["stdout"] == expected, result.content


async def is_refused(server, *reasons, **arguments):
    """A call that can't be served. Its answer says why."""
    result = await ask(server, **arguments)
    assert result.structured_content is None, result.content
    assert any(reason in head(result) for reason in reasons), result.content


async def recovers(server, within=RECOVERED_WITHIN_S, **arguments):
    """Waits until calls are served again, without any help."""
    began = time.monotonic()
    with anyio.fail_after(within):
        while (await ask(server, **arguments)).is_error:
            await anyio.sleep(0.2)
    FIGURES.info("served again after %.1f s", time.monotonic() - began)


@contextmanager
def at_rest(server):
    """Sees that meanwhile the server costs little and does not say the same for ever."""
    began, cpu, lines = time.monotonic(), cpu_seconds(server.pid), _lines(server.log)
    yield
    took = time.monotonic() - began
    spent, said = cpu_seconds(server.pid) - cpu, _lines(server.log) - lines
    FIGURES.info("%.1f s of CPU time and %d lines in %.0f s", spent, said, took)
    assert spent < CPU_S + CPU_SHARE * took, f"{spent} s of CPU time in {took} s"
    assert said < LINES + LINES_A_SECOND * took, f"{said} lines in {took} s: {server.log.read_text()[-3000:]}"


def _lines(path):
    return path.read_bytes().count(b"\n")


@asynccontextmanager
async def running(server, code="import time; time.sleep(30)", **arguments):
    """A call whose program runs. Gives a list, in which the result is after the block."""
    started = anyio.Event()
    results = []

    async def listen(progress, total, message):
        if "runs" in (message or ""):
            started.set()

    async def call():
        arguments["entrypoint_code"] = f"print('runs', flush=True)\n{code}"
        call = server.client.call_tool(
            "execute_code", {"language": "python"} | arguments, progress_callback=listen, meta=WAITS
        )
        with anyio.fail_after(ANSWERED_WITHIN_S):
            results.append(await call)
        if results[0].structured_content is None:
            check_refusal(results[0].content[0].text)

    async with anyio.create_task_group() as calls:
        calls.start_soon(call)
        with anyio.fail_after(ANSWERED_WITHIN_S):
            await started.wait()
        yield results


def collect(state, before=()):
    """Removes what dead servers have left: `isolator gc`. `before` is a command that starts it."""
    command = [*before, BINARY, "--engine", engine.KIND, "gc"]
    done = subprocess.run(command, env=environment(state), capture_output=True, text=True, timeout=120, cwd=state)
    assert done.returncode == 0, done.stderr


def copy_images(folder):
    """A store of the embedded engine with the images, whose files are those of the user's own where they can be."""
    source = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "isolator"
    target = folder / "isolator"
    (target / "images").mkdir(parents=True)
    names = {name: digest for name in IMAGES for name, digest in _names(source, name)}
    (target / "names.json").write_text(json.dumps(names))
    for digest in set(names.values()):
        image = source / "images" / digest.removeprefix("sha256:")
        copy = ["cp", "-a", str(image), str(target / "images")]
        if subprocess.run([*copy, "--link"], capture_output=True).returncode != 0:
            shutil.rmtree(target / "images" / image.name, ignore_errors=True)
            subprocess.run([*copy, "--reflink=auto"], check=True)


def _names(store, short):
    name = f"docker.io/{short}:latest"
    return [(name, json.loads((store / "names.json").read_text())[name])]
