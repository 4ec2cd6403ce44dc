"""Folders that a cleaner of old files empties while a server uses them. The server creates them again."""

import os
import shutil
import subprocess
from contextlib import contextmanager

import engine
import pytest
from faults import POOLED, ask, copy_images, head, is_filled, recovers, serving, succeeds

pytestmark = pytest.mark.only_on("embedded")


@pytest.fixture
def store(tmp_path_factory, monkeypatch):
    """A store of images for this test alone."""
    assert os.geteuid() == 0, "a store can be copied only by root: run these tests as root"
    folder = tmp_path_factory.mktemp("store")
    copy_images(folder)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    return folder


def empty(folder):
    for path in folder.iterdir():
        shutil.rmtree(path)


def remove_files(folder):
    """As a cleaner does that leaves folders."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()


async def test_emptied_folders_of_sandboxes_are_created_again(tmp_path, store):
    async with serving(tmp_path) as server:
        await is_filled(server)
        instances = tmp_path / "isolator/instances"
        for harm in [
            lambda: empty(instances / "embedded"),
            lambda: remove_files(instances / "embedded"),
            lambda: [empty(folder) for folder in (instances / "embedded").iterdir()],
            lambda: shutil.rmtree(tmp_path / "isolator"),
        ]:
            harm()
            await serves(server)


async def test_images_that_come_back_are_used(tmp_path, store):
    python = store / "isolator/images" / engine.image_id("isolator/python").removeprefix("sha256:")
    async with serving(tmp_path) as server:
        await is_filled(server)
        for folder in [python, store / "isolator/images", store / "isolator"]:
            with away(folder):
                # Neither those that wait nor new ones are given to a program that would find half of its image.
                answer = await ask(server)
                assert answer.structured_content is None and "isolator/python" in head(answer), answer.content
            await recovers(server)
            await serves(server)


async def test_everything_is_deleted_at_once(tmp_path, store):
    async with serving(tmp_path) as server:
        await is_filled(server)
        shutil.rmtree(tmp_path / "isolator")
        with away(store / "isolator"):
            assert (await ask(server)).is_error
        await recovers(server)
        await serves(server)


# What needs files of the image that were not used before, and those that are mounted over it.
PROGRAM = """
import json, sqlite3, subprocess
print(subprocess.getoutput("head -c 9 /etc/hosts; ls /usr | head -1"))
"""


async def serves(server):
    """The pool is full again, and all that wait there find their files."""
    for _ in range(POOLED + 1):
        await succeeds(server, PROGRAM, expected="127.0.0.1bin\n")
    await is_filled(server)


@contextmanager
def away(folder):
    """Deletes a folder, and makes a copy of it in its place."""
    copy = folder.with_name(f"{folder.name}-copy")
    # Owners and modes are those of the image.
    subprocess.run(["cp", "-a", "--link", str(folder), str(copy)], check=True)
    shutil.rmtree(folder)
    try:
        yield
    finally:
        copy.rename(folder)
