"""Packages that get far larger than what is downloaded: builds end when they reach a bound, and not when they have filled the machine."""

import os
import zipfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import engine
import package_sets
import processes
import pytest
from package_index import Index, Packages
from package_sets import Store, serving
from server import until

MIB = 1 << 20

# What all sets can have, and what the tools can.
STORE_MB = 16
MEMORY_MB = 256

# What is written between two looks at the disk of a busy machine. Each bomb has far more.
LATE_MB = 240
BOMB_MB = 400

# Memory of a process that its bound does not count: the tool's program itself, which its file has.
PROGRAM_MB = 128

# Deeper than any set may be, and short enough for a path.
DEEP = 1850

pytestmark = pytest.mark.any_engine


def bombs():
    """Packages for Python and Node.js that get large, by their names, and an ordinary one."""
    found = Packages()
    zeros = bytes(MIB)
    many = {f"{{0}}/{number}.bin": zeros for number in range(BOMB_MB)}

    def wheel(name, files, *metadata):
        # The list of files is not read before they are there.
        files = {path.format(name): content for path, content in files.items()}
        found.wheel(name, "1.0", *metadata, files=files, record="", compression=zipfile.ZIP_DEFLATED)

    wheel("long-wheel", {"{0}.bin": zeros * BOMB_MB})
    wheel("many-wheel", many)
    wheel("deep-wheel", {"d/" * DEEP + "x.py": ""})
    found.wheel("ordinary", files={"ordinary.py": "x = 3\n"})
    wheel("told-wheel", {}, "X-Long: " + "x" * (BOMB_MB * MIB))
    found.module("long-module", files={"x.bin": zeros * BOMB_MB})
    found.module("many-module", files={path.format("x"): content for path, content in many.items()})
    found.module("told-module", readme="x" * (BOMB_MB * MIB))
    return found


def folder_mb(folder):
    """The disk space of a folder in MiB, each file once."""
    seen = {}
    for path, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                found = os.lstat(os.path.join(path, name))
                seen[found.st_ino] = found.st_blocks * 512
    return sum(seen.values()) / MIB


class Most:
    """The most that builds had on disk and in memory, in MiB."""

    def __init__(self, store):
        self.store = store
        self.disk = self.memory = 0
        # What the kernel knows of the tools: their control groups, and who is killed first.
        self.groups, self.scores = set(), set()

    def look(self):
        self.disk = max(self.disk, folder_mb(self.store.packages))
        for pid in package_sets.tools_of(self.store):
            with suppress(OSError, TypeError):
                self.memory = max(self.memory, processes.status(pid, "VmHWM") / 1024)
                self.groups.add("+tools/" in Path(f"/proc/{pid}/cgroup").read_text())
                self.scores.add(int(Path(f"/proc/{pid}/oom_score_adj").read_text()))


@asynccontextmanager
async def measured(store):
    """Looks at what builds take meanwhile."""
    most = Most(store)

    async def look():
        while True:
            await anyio.to_thread.run_sync(most.look)
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as looking:
        looking.start_soon(look)
        yield most
        looking.cancel_scope.cancel()


OF_MEMORY = ("npm", "256 MiB", "buildMemoryMB")

# npm keeps what it has unpacked until the disk has it, so on a slow disk it reaches the bound of memory first.
EITHER = {"long-module", "many-module"}

BOMBS = [
    ("python", "long-wheel", ("long", "16 MiB", "maxStoreMB")),
    ("python", "many-wheel", ("many-wheel", "16 MiB", "maxStoreMB")),
    ("python", "deep-wheel", ("deep-wheel", "deeper than 64")),
    ("python", "told-wheel", ("told-wheel", "uv", "256 MiB", "buildMemoryMB")),
    ("javascript", "long-module", ("long-module", "16 MiB", "maxStoreMB")),
    ("javascript", "many-module", ("many-module", "16 MiB", "maxStoreMB")),
    ("javascript", "told-module", ("told-module", *OF_MEMORY)),
]


async def test_a_package_that_gets_too_large_is_refused_early_and_leaves_nothing(tmp_path):
    store = Store(tmp_path / "data")
    cache = store.packages / "cache"
    with Index(bombs()) as index:
        address = {"python": index.python(), "javascript": index.javascript()}
        bounds = {"maxStoreMB": STORE_MB, "buildMemoryMB": MEMORY_MB}
        config = package_sets.config(tmp_path, None, address, onDemand={"enabled": True}, **bounds)
        # What a server has left that was killed.
        (cache / "uv").mkdir(parents=True)
        (cache / "uv/left").write_bytes(bytes(STORE_MB * MIB))
        (cache / "7/npm").mkdir(parents=True)
        (cache / "7/npm/left").write_bytes(bytes(STORE_MB * MIB))
        async with serving(tmp_path, config, store) as server:

            async def build_beside():
                assert await server.prints("import ordinary; print(ordinary.x)", "ordinary") == "3\n"

            await server.prints("1")
            assert folder_mb(cache) < 1
            for language, name, parts in BOMBS:
                async with measured(store) as most, anyio.create_task_group() as beside:
                    if name == "many-wheel":
                        beside.start_soon(build_beside)
                    text = (await server.fails("1", name, language=language)).content[0].text
                assert text.startswith("Packages error: "), text
                is_as_told = all(part in text for part in parts)
                assert is_as_told or (name in EITHER and all(part in text for part in OF_MEMORY)), text
                assert most.disk < STORE_MB + LATE_MB, (name, most.disk)
                assert 500 in most.scores and (True in most.groups) == (engine.KIND == "embedded"), (most.scores, most.groups)
                assert 0 < most.memory < MEMORY_MB + PROGRAM_MB, (name, most.memory)

                def is_clean():
                    left = store.unfinished(), package_sets.tools_of(store)
                    return left == ([], []) and folder_mb(store.packages) < 1

                await until(is_clean, 10, f"a store without {name}")
