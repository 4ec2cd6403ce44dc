"""A program that gets an interpreter which was started ahead of it can't tell, and nobody can.

Each file in `preload/` is a program. It runs on a server that starts nothing ahead and on one that does,
and what comes back has to be the same, but for addresses and for what its settings name. The settings are
one JSON object in the comments that begin with `#:` or `//:`:

    args, stdin, env, timeout, memory_mb  as in a call
    file        the name under which it is sent; main with its own extension by default
    files       other files by their names, as text or as {"base64": ...}
    status      what becomes of it; "success" by default
    ways        in which it runs beside the plain one: "bare", and for Python "loaded"; all by default
    unordered   whether the order of the lines means nothing
    preloaded   whether it can have an interpreter that was started ahead; true by default
    hide        patterns of what differs between any two runs
"""

import json
import re
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import engine
import pytest
from server import CONFIG, isolator, until

PROGRAMS = Path(__file__).with_name("preload")
LANGUAGES = {".py": "python", ".js": "javascript", ".cjs": "javascript", ".mjs": "javascript"}
LANGUAGES[".ts"] = "javascript"

# Added to a Python program that mentions none of the modules, to be given the interpreter that has them.
MENTION = "\n# pandas\n"

# What a run has of its own, even if nothing but the sandbox is another.
BY_NATURE = re.compile(r"\b0x[0-9a-f]{6,16}\b")
ADDRESS = re.compile(r"isolator://runs/[0-9a-f]{32}/")
OF_THE_RUN = {"cpu_ms", "peak_memory_bytes", "receipt"}

# Deep enough that a request finds a sandbox on the shelf while others are being made.
POOL = {"size": 4, "hot": 1}
READY_WITHIN_S = 90
ATTEMPTS = 5


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
        mention = MENTION if way == "loaded" else ""
        return self.call | {"entrypoint_code": self.code + mention}

    def told(self, result):
        """What came back, without what is the run's own."""
        content = ADDRESS.sub("isolator://runs/*/", json.dumps(result.structured_content))
        data = {k: v for k, v in json.loads(content).items() if k not in OF_THE_RUN}
        for key in ("stdout", "stderr", "message"):
            for pattern in (BY_NATURE, *self.hidden):
                data[key] = pattern.sub("*", data.get(key, ""))
            if self.unordered:
                data[key] = sorted(data[key].splitlines())
        return data


class Side:
    """A server on which programs run one at a time, each on a sandbox from the shelf."""

    def __init__(self, server):
        self.server = server
        self.locks = {language: anyio.Lock() for language in set(LANGUAGES.values())}
        self.images = {language: engine.image_id(f"isolator/{language}") for language in self.locks}

    def shelved(self, language):
        """Whether there is one that waits. One that is paused is ready to the last."""
        return any(
            sandbox.state == "paused" and sandbox.image == self.images[language]
            for sandbox in engine.sandboxes(self.server.instance)
        )

    async def run(self, program, way):
        async with self.locks[program.language]:
            for _ in range(ATTEMPTS):
                await until(lambda: self.shelved(program.language), READY_WITHIN_S, "a sandbox")
                result = await self.server.call(**program.arguments(way))
                if result.structured_content["receipt"]["start"] in {"hot", "warm"}:
                    return result
        raise AssertionError("no sandbox was ready in any attempt")


@asynccontextmanager
async def side(state, enabled):
    config = json.loads(CONFIG.read_text())
    config["pool"] = POOL
    # More than the shipped one gives, so that sandboxes are made sooner.
    config["defaultCpus"] = 1
    config["languageSettings"] = {
        "go": {"enabled": False},
        "python": {"preload": {"enabled": enabled}},
        "javascript": {"preload": {"enabled": enabled}},
    }
    path = state / "config.json"
    path.write_text(json.dumps(config))
    async with isolator(state, config=path) as server:
        yield Side(server)


@pytest.fixture(scope="module")
async def plain(anyio_backend, tmp_path_factory):
    async with side(tmp_path_factory.mktemp("plain"), False) as plain:
        yield plain


@pytest.fixture(scope="module")
async def ahead(anyio_backend, tmp_path_factory):
    async with side(tmp_path_factory.mktemp("ahead"), True) as ahead:
        yield ahead


def programs():
    return sorted(path.name for path in PROGRAMS.iterdir() if path.suffix in LANGUAGES)


@pytest.mark.parametrize("name", programs())
async def test_nobody_can_tell(plain, ahead, name):
    program = Program(PROGRAMS / name)
    results = {}

    async def run(side, way):
        results[way] = await side.run(program, way)

    async with anyio.create_task_group() as runs:
        runs.start_soon(run, plain, "plain")
        for way in program.ways:
            runs.start_soon(run, ahead, way)

    expected = program.told(results["plain"])
    assert expected["status"] == program.status, expected
    assert not results["plain"].structured_content["receipt"]["preloaded"]
    for way in program.ways:
        found = program.told(results[way])
        for key in sorted(found | expected):
            assert found.get(key) == expected.get(key), (way, key)
        assert results[way].structured_content["receipt"]["preloaded"] == program.preloaded, way
