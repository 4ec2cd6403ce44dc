"""Forks of one template return nothing that was drawn once for all of them.

All modules of the Python image are imported ahead, in a few groups. A program calls every function whose name says that it draws
something, and looks at every number and text that modules keep. What three plain starts find alike is a constant. All else must
differ in any two forks.
"""

import collections
import json
import os
import time
from pathlib import Path

import anyio
import pytest
from server import configuration, isolator, receipt

FOLDER = Path(__file__).with_name("draws")
LIST = (FOLDER / "list_modules.py").read_text()
DRAW = (FOLDER / "draw.py").read_text()

TEMPLATES = 2 if os.environ.get("ISOLATOR_TEST_ALL") else 1
# Enough to find what all have in common; `make test-all` takes more.
FORKS = 50 if os.environ.get("ISOLATOR_TEST_ALL") else 8
PLAIN_STARTS = 3
AT_ONCE = 2
# Before a template is there, a program gets another interpreter.
READY_WITHIN_S = 30

# What is imported ahead together, with the module of it that programs import.
GROUPS = {"others": "sympy"}

# Programs that name these get an interpreter that has imported nothing.
NOTICED = {"atexit", "builtins", "ctypes", "gc", "importlib", "monitoring", "psutil", "tracemalloc"}

# Values below this are equal in some forks by chance.
LEAST_RARE = 1 << 20

# What differs between plain starts and may be alike in forks.
NOT_DRAWN = {
    # Where functions are in memory: forks have the layout of their template.
    "_ctypes:_cast_addr",
    "ctypes:_cast_addr",
    "_ctypes:_memmove_addr",
    "ctypes:_memmove_addr",
    "_ctypes:_memset_addr",
    "ctypes:_memset_addr",
    "_ctypes:_string_at_addr",
    "ctypes:_string_at_addr",
    "_ctypes:_wstring_at_addr",
    "ctypes:_wstring_at_addr",
    # The time of the import.
    "numpy.f2py.rules:generationtime",
    # The name of a semaphore that was removed again at once.
    "joblib._multiprocessing_helpers:name",
}

# Beside others it takes four times as long, and an import of all modules longer than the server waits for it.
pytestmark = [pytest.mark.only_on("embedded"), pytest.mark.alone]


def language(extension, pool, preload):
    return {
        "image": "isolator/python",
        "command": ["python3", "{file}"],
        "defaultFile": "main.py",
        "extensions": [f".{extension}"],
        "memoryMB": 1024,
        "pool": {"size": pool, "hot": 0},
        "preload": preload,
    }


def started(folder, languages):
    """A server with these languages, which all are Python."""
    folder.mkdir()
    others = {name: {"enabled": False} for name in ("python", "javascript", "go")}
    config = configuration(
        folder,
        defaultCpus=1,
        languageSettings=others | languages,
        limits={"maxOutputKB": 8192, "maxMemoryMB": 1024},
        requests={"maxRunning": AT_ONCE},
    )
    return isolator(folder, "stdio-auto", config)


def plain(folder):
    """A server that starts nothing ahead."""
    # Else the order in sets would differ between its starts, and it does not between forks.
    settings = language("plain", 0, {"enabled": False}) | {"env": {"PYTHONHASHSEED": "0"}}
    return started(folder, {"plain": settings})


def forking(folder, modules):
    """A server that imports the modules ahead, each group in its own language."""
    preloads = {group: {"interpreter": "python", "modules": its, "memoryMB": 1024} for group, its in modules.items()}
    return started(folder, {group: language(group, AT_ONCE, preload) for group, preload in preloads.items()})


async def output(server, language, code, **arguments):
    result = await server.call(language=language, entrypoint_code=code, timeout="60s", **arguments)
    data = result.structured_content
    assert data["status"] == "success", (language, data["message"], data.get("stderr"))
    return json.loads(data["stdout"]), receipt(result)["preloaded"]


def drawing(modules, chosen):
    """The arguments of a call that draws: all that looks like it, or what was chosen."""
    # A program that names more than a few modules gets no own template.
    imports = "".join(f"import {name}\n" for name in modules if not NOTICED & set(name.split(".")))
    return {
        "code": f"{imports}{DRAW}",
        "args": ["chosen.json"],
        "additional_files": [{"filename": "chosen.json", "content": json.dumps([modules, chosen])}],
    }


async def side_by_side(tasks):
    """The results of some functions, a few of which run at a time."""
    limit, results = anyio.CapacityLimiter(AT_ONCE), []

    async def one(task):
        async with limit:
            results.append(await task())

    async with anyio.create_task_group() as group:
        for task in tasks:
            group.start_soon(one, task)
    return results


async def grouped_modules(server):
    """All modules of the image that can be imported ahead, in the order in which that was tried."""
    found, _ = await output(server, "plain", LIST)
    # Others may have imported these already.
    return {group: [first, *(name for name in found[group] if name != first)] for group, first in GROUPS.items()}


async def plain_starts(server, modules):
    """The values of plain starts, by group."""

    async def one(group):
        found, preloaded = await output(server, "plain", **drawing(modules[group], None))
        assert not preloaded
        return group, found

    results = await side_by_side([lambda group=group: one(group) for group in modules for _ in range(PLAIN_STARTS)])
    return {group: [found for its, found in results if its == group] for group in modules}


def drawn_by(starts):
    """The names of what is no constant: any of their values differ between starts."""
    names = set.intersection(*(set(start) for start in starts))
    names -= NOT_DRAWN | {"template", "imported"}
    return sorted(name for name in names if len({tuple(start[name]) for start in starts}) > 1)


async def forks(server, group, modules, chosen):
    """The values of forks of one template."""
    by_template = collections.defaultdict(list)
    began = time.monotonic()

    async def one():
        found, preloaded = await output(server, group, **drawing(modules, chosen))
        # Else it was started plainly, or is a fork of what has imported nothing.
        if preloaded and not found.pop("imported"):
            # Every fork of a template has its seed of hashes, and no other process has.
            by_template[found.pop("template")].append(found)

    while (missing := FORKS - max(map(len, by_template.values()), default=0)) > 0:
        if not by_template:
            waited = time.monotonic() - began
            assert waited < READY_WITHIN_S, await complaints(server, group)
        await side_by_side([one] * (missing if by_template else 1))
    assert await complaints(server, group) == []
    return max(by_template.values(), key=len)


async def complaints(server, group):
    (content,) = (await server.client.read_resource("isolator://pool")).contents
    return json.loads(content.text)["pools"][group]["preload"]["complaints"]


def is_rare(value):
    """Whether two starts have the same value only if one has it from the other."""
    try:
        return abs(int(value)) >= LEAST_RARE
    except ValueError:
        # What has spaces is a table of a few numbers.
        return len(value) >= 12 and " " not in value


def common(found, chosen):
    """The names of what forks have in common, with a value."""
    leaks = {}
    for name in chosen:
        values = [fork[name][0] for fork in found if name in fork]
        if not values:
            continue
        value, count = collections.Counter(values).most_common(1)[0]
        if count == len(values) > 1 or count > 1 and is_rare(value):
            leaks[name] = f"{count} of {len(values)}: {value}"
    return leaks


async def test_forks_share_no_random_numbers(tmp_path):
    async with plain(tmp_path / "plain") as server:
        modules = await grouped_modules(server)
        starts = await plain_starts(server, modules)
    chosen = {group: drawn_by(its) for group, its in starts.items()}
    # These are known to be drawn.
    assert {"numpy.random.rand()", "scipy.stats.norm.rvs()"} <= set(chosen["others"])
    assert {"sympy.core.random.random", "sympy.Dummy().dummy_index"} <= set(chosen["others"])
    leaks = {}
    for template in range(TEMPLATES):
        async with forking(tmp_path / f"{template}", modules) as server:
            for group, its in modules.items():
                leaks |= common(await forks(server, group, its, chosen[group]), chosen[group])
    assert leaks == {}
