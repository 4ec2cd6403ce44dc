"""Two nodes with one store of sets: a set is built once, and a node uses only what a node with the same key has built."""

import hashlib
import json
from contextlib import AsyncExitStack

import package_sets
import pytest
from package_index import Index, Packages
from package_sets import python_set, serving

pytestmark = pytest.mark.any_engine

PROGRAM = "import shared; print(shared.value)"
BUILT = "a set of packages was built"


def packages():
    found = Packages()
    found.wheel("shared", files={"shared.py": "value = 'as built'\n"})
    return found


def planted(folder):
    """Changes a set so that it agrees with itself, as one who can write to the volume but has no key would do it."""
    (file,) = folder.rglob("shared.py")
    was = hashlib.sha256(file.read_bytes()).hexdigest()
    for path in folder.rglob("*.pyc"):
        path.unlink()
    file.write_text("value = 'planted'\n")
    lines = (folder / "manifest").read_text().splitlines(keepends=True)
    lines = [line.replace(was, hashlib.sha256(file.read_bytes()).hexdigest()) for line in lines if ".pyc" not in line]
    manifest = "".join(lines).encode()
    (folder / "manifest").write_bytes(manifest)
    description = json.loads((folder / "set.json").read_text())
    description["manifest"] = hashlib.sha256(manifest).hexdigest()
    (folder / "set.json").write_text(json.dumps(description, indent=2, sort_keys=True))


async def test_a_set_is_built_once_for_two_nodes_and_no_planted_one_is_used(tmp_path):
    key = tmp_path / "store.key"
    key.write_text("s" * 64)
    volume = tmp_path / "volume"
    with Index(packages()) as index:

        def node(name, **store):
            folder = tmp_path / name
            folder.mkdir()
            store = {"folder": str(volume), "keyFile": str(key)} | store
            sets = {"text": python_set("shared")}
            config = package_sets.config(folder, sets, {"python": index.python()}, {"python"}, store=store)
            return serving(folder, config)

        async with AsyncExitStack() as started:
            nodes = [None, None]

            async def start(number, context):
                nodes[number] = await started.enter_async_context(context)

            # One after the other, but the second one does not wait for the build of the first.
            await start(0, node("a"))
            await start(1, node("b"))
            for one in nodes:
                await one.are("ready", "text")
                assert await one.prints(PROGRAM, "text") == "as built\n"
            assert sum(one.said().count(BUILT) for one in nodes) == 1
            (folder,) = (volume / "sets").iterdir()
            assert [path.name for path in volume.iterdir() if path.name.startswith("build.")] == []

        planted(folder)
        async with node("c") as third:
            assert await third.prints(PROGRAM, "text") == "as built\n"
            assert "no seal of a node with the key of this one" in third.said() and third.said().count(BUILT) == 1

        # A node with another key builds its own.
        other = tmp_path / "other.key"
        other.write_text("o" * 64)
        async with node("d", keyFile=str(other)) as fourth:
            assert await fourth.prints(PROGRAM, "text") == "as built\n"
            assert fourth.said().count(BUILT) == 1
