"""Faults while sets of packages are built and used: killed servers and tools, a full disk, an index that hangs, changed files.

Whatever happens, nothing half-built is ever seen, nothing is left, and each answer says what happened.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress

import anyio
import engine
import package_sets
import processes
import pytest
from disk import Disk
from faults import collect
from package_index import Index, Packages
from package_sets import Store, node_set, packages, python_set, serving, tools_of
from server import command, environment, instances, until

SEED = 11
KILLED = 3

# When the server that wanted it is gone, a tool has to go.
GONE_WITHIN_S = 20

# Folders are removed behind the answer.
CLEAN_WITHIN_S = 5

any_engine = pytest.mark.any_engine


async def is_clean(store):
    """Waits until nothing of a build is left, no folder and no process, which may take a moment longer than the answer."""
    await until(lambda: (store.unfinished(), tools_of(store)) == ([], []), CLEAN_WITHIN_S, "a store without builds")


@any_engine
async def test_a_server_that_is_killed_while_it_builds_leaves_nothing_half_built(tmp_path):
    dice = random.Random(SEED)
    sets = {"text": python_set("alpha", "hook"), "tools": node_set("plain")}
    state, store = tmp_path / "state", Store(tmp_path / "data")
    with Index(packages()) as index:
        index.delay_s = 0.05
        config = package_sets.config(tmp_path, sets, {"python": index.python(), "javascript": index.javascript()})
        for number in range(KILLED):
            with store.used(), (tmp_path / "log").open("a") as log:
                options = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": log}
                server = subprocess.Popen(command(config), env=environment(state), **options)
            asked = len(index.asked)
            with anyio.fail_after(package_sets.BUILT_WITHIN_S):
                while len(index.asked) == asked and len(store.sets()) < 2:
                    await anyio.sleep(0.02)
            await anyio.sleep(dice.uniform(0, 0.6 * number))
            server.kill()
            server.wait()
            server.stdin.close()
            await until(lambda: tools_of(store) == [], GONE_WITHIN_S, "the end of the tools")
            # What is there is whole.
            for folder in store.sets():
                assert (folder / "set.json").exists(), list(folder.iterdir())
            if number % 2:
                for folder in store.sets():
                    shutil.rmtree(folder)
            shutil.rmtree(store.packages / "cache", ignore_errors=True)
        async with serving(tmp_path, config, store) as server:
            await server.are("ready")
            await server.are("ready", language="javascript")
            assert await server.prints("import alpha, hook_extra; print(alpha.value)", "text") == "3\n"
            assert await server.prints("console.log(require('plain').part)", "tools", language="javascript") == "part\n"
            await is_clean(store)
        with store.used():
            collect(state)
        # Also what those left who were killed.
        for instance in instances(state):
            assert engine.left(instance, state) == []


@any_engine
async def test_a_killed_tool_is_reported(tmp_path):
    with Index(packages()) as index:
        index.hangs = "."
        async with serving(tmp_path, _on_demand(tmp_path, index)) as server:

            async def kill(asked):
                with anyio.fail_after(package_sets.BUILT_WITHIN_S):
                    while not (found := tools_of(server.store)) or len(index.asked) == asked:
                        await anyio.sleep(0.02)
                for pid in found:
                    os.kill(pid, signal.SIGKILL)

            for language, name in [("python", "gamma"), ("javascript", "plain")]:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(kill, len(index.asked))
                    text = (await server.fails("1", name, language=language)).content[0].text
                assert text.startswith("Packages error: ") and "signal" in text, text
                assert server.store.sets() == []
                await is_clean(server.store)


# Two packages whose pages never come, and two whose files don't.
HANGING = [("python", "alpha"), ("python", "odd-name-pkg"), ("javascript", "plain"), ("javascript", "dual")]


@any_engine
async def test_an_index_that_hangs_is_given_up(tmp_path):
    with Index(packages()) as index:
        config = _on_demand(tmp_path, index, buildTimeout="4s")
        async with serving(tmp_path, config) as server:
            await server.prints("print(1)")
            index.hangs = r"simple/alpha|npm/plain$|Odd.*\.whl|dual.*\.tgz"
            began = time.monotonic()
            texts = []

            async def ask(language, name):
                texts.append((await server.fails("1", name, language=language)).content[0].text)

            async with anyio.create_task_group() as calls:
                for language, name in HANGING:
                    calls.start_soon(ask, language, name)
                # Meanwhile others are served.
                await anyio.sleep(1)
                assert await server.prints("print(2)") == "2\n"
                assert not texts
            # Two are built at once.
            assert time.monotonic() - began < 60 and len(texts) == len(HANGING)
            for text in texts:
                assert text.startswith("Packages error: ") and "buildTimeout" in text, text
            assert server.store.sets() == []
            await is_clean(server.store)
            index.hangs = None


@any_engine
async def test_nothing_is_left_of_a_disk_that_was_full(tmp_path):
    assert os.geteuid() == 0, "only root can make a disk: run these tests as root"
    found = packages()
    for name in ("large", "larger"):
        found.wheel(name, files={f"{name}.py": "x = 1\n", f"{name}.bin": name.encode() * (40 << 20 >> 3)})
    store = Store(tmp_path / "data")
    disk = Disk(store.packages, 64 << 20)
    try:
        with Index(found) as index:
            config = _on_demand(tmp_path, index, sets={"small": python_set("gamma")})
            async with serving(tmp_path, config, store) as server:
                await server.are("ready", "small")

                async def has_no_space_for(name):
                    text = (await server.fails("1", name)).content[0].text
                    assert text.startswith("Packages error: ") and "space" in text, text
                    # What is there is of use.
                    assert await server.prints("import gamma; print(gamma.value)", "small") == "3\n"
                    assert store.unfinished() == [] and len(store.sets()) == 1

                in_the_way = disk.directory / "in-the-way"
                in_the_way.write_bytes(bytes(48 << 20))
                await has_no_space_for("large")
                in_the_way.unlink()
                with disk.full():
                    await has_no_space_for("odd-name-pkg")
                assert await server.prints("import larger; print(larger.x)", "larger") == "1\n"
                await is_clean(store)
    finally:
        disk.close()


async def test_a_removed_set_is_built_again(tmp_path):
    with Index(packages()) as index:
        sets = {"small": python_set("gamma"), "tools": node_set("plain")}
        config = package_sets.config(tmp_path, sets, {"python": index.python(), "javascript": index.javascript()})
        async with serving(tmp_path, config) as server:
            await server.are("ready")
            await server.are("ready", language="javascript")
            for _ in range(2):
                for folder in [*server.store.sets(), server.store.packages / "cache"]:
                    shutil.rmtree(folder)
                assert await server.prints("import gamma; print(gamma.value)", "small") == "3\n"
                assert await server.prints("console.log(require('plain').part)", "tools", language="javascript") == "part\n"


def change_content(file):
    """Changes a file and hides the change."""
    content, times = file.read_text(), file.stat()
    file.unlink()
    file.write_text(content.replace("3", "4"))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def add_file(file):
    file.with_name("hashlib.py").write_text("")
    file.with_name("added.pth").write_text("import hashlib\n")


def replace_with_link(file):
    outside = file.parents[8] / file.name
    outside.write_text(file.read_text())
    file.unlink()
    file.symlink_to(outside)


CHANGES = {"content": change_content, "added": add_file, "removed": os.unlink, "link": replace_with_link}


@any_engine
async def test_a_changed_set_is_not_used(tmp_path):
    found = Packages()
    for name in CHANGES:
        found.wheel(name, files={f"module_{name}.py": f"value = 3  # {name}\n"})
    with Index(found) as index:
        config = package_sets.config(tmp_path, {name: python_set(name) for name in CHANGES}, {"python": index.python()}, {"python"})
        store = Store(tmp_path / "data")
        assert package_sets.command(tmp_path, config, store, "packages", "build").returncode == 0
        for name, change in CHANGES.items():
            (file,) = store.files(f"module_{name}.py")
            change(file)
        async with serving(tmp_path, config, store) as server:
            for name in CHANGES:
                result = await server.call(f"import module_{name} as module; print(module.value)", name)
                text = result.content[0].text
                if result.is_error:
                    assert "changed" in text and "isolator packages rm" in text, text
                else:
                    # It was built again.
                    assert result.structured_content["stdout"] == "3\n", text
            assert not store.files("added.pth")


def _on_demand(folder, index, sets=None, **settings):
    address = {"python": index.python(), "javascript": index.javascript()}
    return package_sets.config(folder, sets, address, onDemand={"enabled": True}, **settings)
