"""Programs can't notice that their interpreter was started ahead, and neither can their callers.

Each file in `preload/` is a program. It runs on a server that starts nothing ahead and on one that does,
and what comes back has to be the same, but for addresses and for what its settings name. The settings are
one JSON object in the comments that begin with `#:` or `//:`:

    args, stdin, env, timeout, memory_mb  as in a call
    file        the name under which it is sent; main with its own extension by default
    files       other files by their names, as text or as {"base64": ...}
    status      what becomes of it; "success" by default
    ways        in which it runs beside the plain one: "bare", and for Python "loaded"; all by default
    unordered   whether the order of the lines means nothing
    preloaded   whether it can have an interpreter that was started ahead; true by default. Programs that look at
                /proc can't; those that spell it otherwise show that little is seen there
    hide        patterns of what differs between any two runs
"""

import json
import re
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import engine
import pytest
import scope
from server import ROOT, configuration, isolator, receipt
from side_by_side import chosen, side_by_side

PROGRAMS = Path(__file__).with_name("preload")
LANGUAGES = {".py": "python", ".js": "javascript", ".cjs": "javascript", ".mjs": "javascript"}
LANGUAGES[".ts"] = "javascript"

# Added to a Python program that imports none of the modules, to be given the interpreter that has them. It is not given
# to programs that could tell.
IMPORT = "\nif 0: import pandas\n"

# Values that differ in every run.
BY_NATURE = re.compile(r"\b0x[0-9a-f]{6,16}\b")
ADDRESS = re.compile(r"isolator://runs/[0-9a-f]{32}/")
OF_THE_RUN = {"cpu_ms", "peak_memory_bytes"}

# Where the engine is Docker, these show what it does differently: how processes start, end and are signalled, and what
# they find of memory, descriptors and the file system. With ISOLATOR_TEST_ALL=1 all programs run there, too.
ON_DOCKER = {
    "children.js",
    "children_of_python.py",
    "descriptors.js",
    "descriptors.py",
    "environment.py",
    "environment_of_the_request.js",
    "exec_itself.py",
    "exit_codes.js",
    "fork_and_wait.py",
    "hostile_sibling.py",
    "libraries.py",
    "mappings.js",
    "mappings.py",
    "memory_beyond_limit.py",
    "memory_of_a_plain_start.py",
    "memory_small_limit.py",
    "memory_too_much.js",
    "memory_too_much.py",
    "memory_within_limit.py",
    "memory_without_modules.py",
    "process.js",
    "process.py",
    "process_limit.py",
    "processes.js",
    "processes.py",
    "signal_abort.js",
    "signal_group.py",
    "signal_kill.py",
    "signal_terminate.py",
    "stdin_unread.py",
    "stdout_closed.py",
    "threads_after_a_moment.py",
    "threads_at_once.py",
    "threads_outlive.py",
    "timeout.js",
    "timeout.py",
    "unflushed_with_pandas.py",
    "workers.js",
}

# What the shipped configuration starts ahead.
SHIPPED = json.loads((ROOT / "src/config/languages.json").read_text())

# Deep enough that a request finds a sandbox that waits while others are being made.
POOL = {"size": 6, "hot": 1}
AT_ONCE = 4
READY_WITHIN_S = 90


class Program:
    """A file of the folder, and how it is to be run."""

    def __init__(self, path):
        self.language = LANGUAGES[path.suffix]
        self.code = path.read_text()
        settings = json.loads(" ".join(re.findall(r"^(?:#|//): (.*)$", self.code, re.M)) or "{}")
        self.status = settings.pop("status", "success")
        self.preloaded = settings.pop("preloaded", True)
        known = ["bare", "loaded"] if self.language == "python" else ["bare"]
        self.ways = settings.pop("ways", known)
        self.unordered = settings.pop("unordered", False)
        self.hidden = [re.compile(pattern) for pattern in settings.pop("hide", [])]
        default = "main.py" if self.language == "python" else "main.js"
        self.call = {
            "language": self.language,
            "entrypoint_filename": settings.pop("file", default if path.suffix in (".py", ".js") else "main" + path.suffix),
            "additional_files": [
                {"filename": name, "content": content}
                if isinstance(content, str)
                else {"filename": name, "content": content["base64"], "encoding": "base64"}
                for name, content in settings.pop("files", {}).items()
            ],
        } | settings

    def arguments(self, way):
        added = IMPORT if way == "loaded" else ""
        return self.call | {"entrypoint_code": self.code + added}

    def told(self, result):
        """The answer, without the values that differ in every run."""
        content = ADDRESS.sub("isolator://runs/*/", json.dumps(result.structured_content))
        data = {k: v for k, v in json.loads(content).items() if k not in OF_THE_RUN}
        for key in ("stdout", "stderr", "message"):
            for pattern in (BY_NATURE, *self.hidden):
                data[key] = pattern.sub("*", data.get(key, ""))
            if self.unordered:
                data[key] = sorted(data[key].splitlines())
        return data


class Ahead:
    """A server that starts interpreters ahead."""

    def __init__(self, server):
        self.server = server
        self.turns = {language: anyio.Lock() for language in set(LANGUAGES.values())}

    async def run(self, program, way):
        """Runs a program in a sandbox that waited. The receipt tells whether it did."""
        with anyio.fail_after(READY_WITHIN_S):
            while True:
                # Only one looks for the next sandbox, which others would take at the same time.
                async with self.turns[program.language]:
                    while not await self.has_one(program.language):
                        await anyio.sleep(0.05)
                result = await self.server.call(**program.arguments(way))
                if receipt(result)["start"] in {"hot", "warm"}:
                    return result

    async def has_one(self, language):
        """Whether a sandbox seems to wait. One that is paused has everything in it."""
        (content,) = (await self.server.client.read_resource("isolator://pool")).contents
        return json.loads(content.text)["pools"][language]["paused"] > 0


@asynccontextmanager
async def started(folder, **settings):
    """A server that gives programs more of the processor than the shipped one, so that sandboxes are made sooner."""
    config = configuration(folder, defaultCpus=1, **settings)
    async with isolator(folder, "stdio-auto", config) as server:
        yield server


async def compare(plain, ahead, name):
    """Runs a program in all ways, and sees that nothing of what comes back differs."""
    program = Program(PROGRAMS / name)
    results = {}

    async def run(way):
        results[way] = await ahead.run(program, way)

    async with anyio.create_task_group() as runs:
        for way in program.ways:
            runs.start_soon(run, way)
        results["plain"] = await plain.call(**program.arguments("plain"))

    expected = program.told(results["plain"])
    assert expected["status"] == program.status, expected
    assert not receipt(results["plain"])["preloaded"]
    for way in program.ways:
        found = program.told(results[way])
        for key in sorted(found | expected):
            assert found.get(key) == expected.get(key), (way, key)
        assert receipt(results[way])["preloaded"] == program.preloaded, way


@pytest.fixture(scope="module")
async def outcomes(request, anyio_backend, tmp_path_factory):
    """The comparisons of all programs that are asked for."""
    names = [run["name"] for run in chosen(request, "test_preloading_is_not_noticeable")]
    off = {language: {"preload": {"enabled": False}} for language in ("python", "javascript")}
    on = {language: {"preload": SHIPPED[language]["preload"]} for language in off}
    async with (
        started(tmp_path_factory.mktemp("plain"), pool={"size": 0, "hot": 0}, languageSettings=off) as plain,
        started(tmp_path_factory.mktemp("ahead"), pool=POOL, languageSettings=on) as server,
    ):
        ahead = Ahead(server)

        async def compare_one(name):
            await compare(plain, ahead, name)

        async with side_by_side(compare_one, names, AT_ONCE) as outcomes:
            yield outcomes


def programs():
    names = sorted(path.name for path in PROGRAMS.iterdir() if path.suffix in LANGUAGES)
    if scope.EVERYTHING or engine.KIND == "embedded":
        return names
    assert ON_DOCKER <= set(names), "a program that is to run on Docker is not there"
    return sorted(ON_DOCKER)


@pytest.mark.parametrize("name", programs())
async def test_preloading_is_not_noticeable(outcomes, name):
    await outcomes[name].check()
