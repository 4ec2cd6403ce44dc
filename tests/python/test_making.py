"""Faults while a sandbox is made: each of its system calls fails or is the last one, and what a sandbox needs runs out.

Whatever happens, the request succeeds in another sandbox or says which step has failed; nothing is left; and the next one works.
"""

import logging
import random
import resource
from contextlib import asynccontextmanager, contextmanager

import anyio
import making
import processes
import pytest
import scope
from faults import NO_POOL, ask, head, recovers, serving, succeeds
from server import receipt, until

pytestmark = pytest.mark.only_on("embedded")

FIGURES = logging.getLogger("figures")
SEED = 1

MADE_WITHIN_S = 30

WAYS = {
    "as a fork of a template": {"enabled": True, "modules": []},
    "in a new interpreter": {"enabled": False},
}

# A fork, in a sandbox with a writable root, takes the steps of all others, too.
EACH_WAY = [pytest.param(way, marks=[] if number == 0 else pytest.mark.release) for number, way in enumerate(WAYS)]


def python(way, pool=NO_POOL):
    """A server that makes each sandbox when it is needed."""
    language = {"enabled": True, "image": "isolator/python", "preload": WAYS[way]}
    return {"pool": pool, "languages": {"python": language}, "defaultReadOnlyRootfs": False}


@asynccontextmanager
async def prepared(folder, way="as a fork of a template"):
    """A server that has what the first sandboxes need, such as a template."""
    async with serving(folder, **python(way)) as server:
        for _ in range(3):
            await succeeds(server)
        await anyio.sleep(0.5)
        yield server


def makers(server):
    return [*making.launchers(server.pid), *making.helpers(server.pid)]


def chosen(counted):
    """Each call, and which time it is made: all of them before a release, else the first, the last and one between."""
    for call, count in counted.items():
        numbers = {1, count, random.Random(f"{SEED} {call}").randint(1, count)}
        for number in range(1, count + 1) if scope.EVERYTHING else sorted(numbers):
            yield call, number


@pytest.mark.parametrize("way", EACH_WAY)
async def test_every_system_call_of_the_making_can_fail_or_be_the_last(tmp_path, way):
    async with prepared(tmp_path, way) as server:
        with making.traced(makers(server)) as folder:
            await succeeds(server)
            counted = making.calls(folder)
        FIGURES.info("calls of the making: %s", counted)
        before = making.left(server)
        failed = {}
        for call, number in chosen(counted):
            for fault in (f"error={making.ERROR_OF[call]}", "signal=KILL"):
                what = f"{call} number {number}: {fault}"
                with making.traced(makers(server), f"--inject={call}:{fault}:when={number}", f"--trace={call}"):
                    answer = await ask(server)
                FIGURES.info("%s: %s", what, head(answer))
                try:
                    await succeeds(server)
                    await making.nothing_is_left(server, before)
                except AssertionError as error:
                    failed[what] = str(error).splitlines()[0]
                    FIGURES.info("failed: %s", failed[what])
                    # The others are tried with new launchers.
                    making.kill(making.launchers(server.pid))
                    await recovers(server)
        assert not failed, failed


def spare_descriptors(server, spare):
    return making.limited(making.launchers(server.pid), resource.RLIMIT_NOFILE, lambda pid: processes.open_files(pid) + spare)


@contextmanager
def spare_processes(server, spare):
    with making.Group("pids") as group:
        group.take(making.launchers(server.pid))
        group.write("pids.max", int(group.read("pids.current")) + spare)
        yield


@contextmanager
def spare_memory(server, spare):
    limit, used = ("memory.max", "memory.current")
    with making.Group("memory") as group:
        if group.is_version_1:
            limit, used = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        group.take(making.launchers(server.pid))
        group.write(limit, int(group.read(used)) + (spare << 16))
        yield


@contextmanager
def spare_groups(server, spare):
    """Groups of version 2 below the one of the instance."""
    groups = making.groups_of_version_2(server.instance)
    for group in groups:
        (group / "cgroup.max.descendants").write_text(str(spare))
    try:
        yield
    finally:
        for group in groups:
            (group / "cgroup.max.descendants").write_text("max")


# What runs out, up to how much of it there is more than the launchers have already, and whether a sandbox can't be made without.
SHORT = {
    "descriptors": (spare_descriptors, 30, True),
    "processes": (spare_processes, 3, True),
    "control groups": (spare_groups, 1, True),
    # The kernel ends the launcher, or that has what it needs already.
    "memory": (spare_memory, 6, False),
}


@pytest.mark.parametrize("what", SHORT)
async def test_what_a_launcher_needs_runs_out(tmp_path, what):
    shortage, most, is_needed = SHORT[what]
    async with prepared(tmp_path) as server:
        before = making.left(server)
        refused = 0
        for spare in range(most):
            with shortage(server, spare):
                answer = await ask(server)
            FIGURES.info("%d %s: %s", spare, what, head(answer))
            refused += answer.structured_content is None
            await recovers(server)
            await making.nothing_is_left(server, before)
        assert refused or not is_needed, "no sandbox has failed"


# What is there for forks only. `strace` shows it.


async def has_template(server):
    await until(lambda: making.templates(server.pid), MADE_WITHIN_S, "a template")


@pytest.mark.parametrize("way", WAYS)
async def test_only_the_interpreter_of_a_template_is_in_a_file_system_with_large_pages(tmp_path, way):
    async with serving(tmp_path, **python(way)) as server:
        # Its launcher does not exist yet.
        with making.traced([server.pid], "--trace=fsconfig") as folder:
            await succeeds(server)
            if WAYS[way]["enabled"]:
                await has_template(server)
            asked = making.text(folder)
    assert '"size"' in asked
    assert ('"huge", "within_size"' in asked) == WAYS[way]["enabled"]


@pytest.mark.parametrize("pool, rehearses", [(NO_POOL, False), ({"size": 1, "hot": 0}, True)])
async def test_a_fork_rehearses_only_if_no_program_waits_for_it(tmp_path, pool, rehearses):
    async with serving(tmp_path, **python("as a fork of a template", pool)) as server:
        await succeeds(server)
        await has_template(server)
        await anyio.sleep(0.5)
        with making.traced([*makers(server), *making.templates(server.pid)], "--trace=openat") as folder:
            answers = [await ask(server) for _ in range(3)]
            await anyio.sleep(0.5)
            opened = making.text(folder)
    assert all(receipt(answer)["preloaded"] for answer in answers), answers
    # The rehearsal opens the null device.
    assert ('"/dev/null"' in opened) == rehearses
