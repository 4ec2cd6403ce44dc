"""The commands for sets of packages, and commands that run programs with them. The index is a folder of wheels."""

import json
import os
import re
import resource
import subprocess
from contextlib import closing

import package_sets
import pytest
from disk import Disk
from package_sets import Store, packages, python_set
from server import BINARY, environment

pytestmark = pytest.mark.any_engine

WHEELS = {"python": "wheels"}


class Commands:
    """Commands with a configuration and a store of their own."""

    def __init__(self, folder, sets, **settings):
        self.folder = folder
        packages().write(folder / "wheels")
        self.sets = sets
        self.settings = settings
        self.store = Store(folder / "data")
        self.configure()

    def configure(self):
        self.config = package_sets.config(self.folder, self.sets, WHEELS, {"python"}, **self.settings)

    def run(self, *arguments, **options):
        return package_sets.command(self.folder, self.config, self.store, *arguments, **options)

    def prints(self, *arguments, **options):
        done = self.run(*arguments, **options)
        assert done.returncode == 0, done
        return done.stdout

    def fails(self, code, *arguments, **options):
        done = self.run(*arguments, **options)
        assert done.returncode == code, done
        return done.stderr

    def rows(self):
        """The lines of the list by their first words, as words."""
        lines = [line.split() for line in self.prints("packages", "ls").splitlines() if not line.startswith(" ")]
        return {line[0]: line for line in lines}

    def hash(self, name):
        (found,) = [found for found in json.loads(self.prints("packages", "ls", "--json")) if found["name"] == name]
        return found["hash"]


@pytest.fixture
def commands(tmp_path):
    return Commands(tmp_path, {"text": python_set("alpha==1.*"), "small": python_set("gamma")})


def test_sets_are_built_listed_explained_and_removed(commands):
    assert commands.rows()["text"] == ["text", "python", "-", "-", "not", "built", "-", "-"]
    done = commands.run("packages", "build")
    assert done.returncode == 0 and "done once" in done.stderr, done
    assert f"wrote {commands.folder}/isolator.lock/text" in done.stderr, done
    assert re.search(r"^text [0-9a-f]{12}, 1 MiB: alpha 1.1, gamma 1.0$", done.stdout, re.M), done
    assert commands.run("packages", "build").stderr == "", "what is there is found without a word"
    assert commands.rows()["text"][1:3] == ["python", "2"]

    why = commands.prints("packages", "why", "text", "Gamma")
    assert why == "gamma 1.0 is in text:\n  alpha==1.* -> alpha 1.1 -> gamma 1.0\n"
    reasons = json.loads(commands.prints("packages", "why", "text", "gamma", "--json"))
    assert reasons["chains"] == [["alpha==1.*", "alpha 1.1", "gamma 1.0"]]
    assert "text, which has alpha, gamma" in commands.fails(125, "packages", "why", "text", "beta")

    own = commands.hash("small")
    assert own[:12] in commands.prints("packages", "rm", own[:8], "text")
    assert commands.store.sets() == []
    assert "packages build text" in commands.fails(125, "packages", "rm", "text")


def test_unknown_sets_are_named_with_the_known_ones(commands):
    for arguments in (["build", "txet"], ["lock", "txet"], ["why", "txet", "a"], ["rm", "txet"]):
        stderr = commands.fails(125, "packages", *arguments)
        assert '"txet": use some of small, text' in stderr, stderr
    assert "begins with abcdef" in commands.fails(125, "packages", "rm", "abcdef")
    commands.sets = {}
    commands.configure()
    assert "names no sets" in commands.fails(125, "packages", "build")


def test_a_set_that_can_t_be_built_does_not_keep_the_others_from_it(commands):
    commands.sets = {"text": commands.sets["text"], "a-bad": python_set("no-such-package")}
    commands.configure()
    done = commands.run("packages", "build")
    assert done.returncode == 1 and "no-such-package" in done.stderr, done
    assert commands.rows()["text"][2] == "2"


def test_a_set_in_use_stays_and_its_users_are_named(commands):
    commands.prints("packages", "build", "text")
    program = commands.folder / "waits.py"
    program.write_text("import alpha, time\nprint(alpha.value, flush=True)\ntime.sleep(60)\n")
    with commands.store.used():
        arguments = ["run", "--packages", "text", "--timeout", "60", str(program)]
        started = [BINARY, "--engine", package_sets.engine.KIND, "--config", str(commands.config), *arguments]
        variables = environment(commands.folder / "state2")
        user = subprocess.Popen(started, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        # The program's output comes at its end, so the list tells when it has begun.
        while str(user.pid) not in commands.prints("packages", "ls"):
            assert user.poll() is None
        (found,) = [found for found in json.loads(commands.prints("packages", "ls", "--json")) if found["name"] == "text"]
        assert [used["pid"] for used in found["usedBy"]] == [user.pid]
        stderr = commands.fails(125, "packages", "rm", "text")
        assert "in use by" in stderr and str(user.pid) in stderr, stderr
        commands.sets = {"small": python_set("gamma")}
        commands.configure()
        done = commands.run("packages", "prune")
        assert done.returncode == 0 and "in use and stays" in done.stderr and str(user.pid) in done.stderr, done
    finally:
        user.terminate()
        user.wait(30)
    assert commands.prints("packages", "prune").startswith("removed 1 set(s)")


def test_prune_keeps_what_the_configuration_names(commands):
    commands.prints("packages", "build")
    commands.sets = {"text": python_set("alpha==1.*"), "small": python_set("gamma==1.*")}
    commands.configure()
    assert "-" in commands.rows(), "the set with the former requirements has no name"
    assert commands.prints("packages", "prune").startswith("removed 1 set(s)")
    assert "-" not in commands.rows() and len(commands.store.sets()) == 1


def test_a_failed_removal_is_reported_and_tried_again(commands):
    commands.prints("packages", "build", "small")
    (folder,) = commands.store.sets()
    mounted = folder / "files/mounted"
    mounted.mkdir()
    with closing(Disk(mounted / "disk", 1 << 20)) as disk:
        (disk.directory / "kept").write_text("kept")
        stderr = commands.fails(1, "packages", "rm", "small")
        assert "could not be deleted and still takes room" in stderr and str(commands.store.packages) in stderr, stderr
        assert not commands.store.sets() and "not" in commands.rows()["small"]
        done = commands.run("packages", "prune")
        assert done.returncode == 1 and "could not be deleted" in done.stderr, done
        (left,) = commands.store.unfinished()
        (kept,) = left.rglob("kept")
        disk.directory = kept.parent
        assert kept.read_text() == "kept", "what is mounted is not removed"
    # However deep it is.
    make_deep(left)
    limits = resource.RLIMIT_NOFILE, (64, 64)
    commands.prints("packages", "prune", preexec_fn=lambda: resource.setrlimit(*limits))
    assert not commands.store.unfinished()


def make_deep(folder, depth=3000):
    """Makes more folders in each other than a path can name."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        above, here = here, os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(above)
    os.close(here)


def test_a_lock_changes_only_when_it_has_to(commands):
    wrote = commands.prints("packages", "lock")
    assert f"wrote {commands.folder}/isolator.lock/text, 2 package(s)\n  alpha 1.1\n  gamma 1.0" in wrote
    found = packages()
    found.wheel("alpha", "1.2")
    found.write(commands.folder / "wheels")
    assert commands.prints("packages", "lock").count("is unchanged") == 2
    changed = commands.prints("packages", "lock", "--upgrade", "text")
    assert "  alpha 1.2 instead of 1.1\n  gamma 1.0 is not needed anymore" in changed

    commands.sets["text"] = python_set("alpha==1.1")
    commands.configure()
    stderr = commands.fails(1, "packages", "build", "text")
    assert "other requirements" in stderr and "isolator packages lock text" in stderr, stderr
    assert "alpha 1.1 instead of 1.2" in commands.prints("packages", "lock", "text")


def test_run_and_session_give_programs_their_packages(commands):
    program = commands.folder / "program.py"
    program.write_text("import alpha; print(alpha.version)\n")
    done = commands.run("run", "--packages", "text", str(program))
    assert done.stdout == "1.1\n" and "done once" in done.stderr, done
    done = commands.run("run", "--packages", "text", "--packages", "small", "--json", str(program))
    receipt = json.loads(done.stdout)["receipt"]
    assert sorted(receipt["packages"]["sets"]) == ["small", "text"], receipt
    assert receipt["ms"]["bind"] >= 0 and receipt["ms"]["packages"] > 0
    stderr = commands.fails(125, "run", "--packages", "txet", str(program))
    assert "txet" in stderr and "small, text" in stderr, stderr

    stderr = commands.fails(1, "run", str(program))
    assert "run it with --packages text" in stderr, stderr

    # What the program says itself is found, too.
    block = "# /// script\n# dependencies = [{}]\n# ///\n"
    program.write_text(block.format('"gamma"') + "import gamma; print(gamma.value)\n")
    assert commands.prints("run", str(program)) == "3\n"
    program.write_text(block.format('"other"') + "print(1)\n")
    done = commands.run("run", str(program))
    assert done.stdout == "1\n" and "dependencies (other) were not installed" in done.stderr, done
    assert commands.run("run", "--quiet", str(program)).stderr == ""

    cells = "import alpha\nalpha.version\n"
    printed = commands.prints("session", "--packages", "text", stdin=None, input=cells)
    assert "'1.1'" in printed, printed


def test_doctor_reports_whether_the_tools_are_installed(commands):
    key = commands.folder / "store.key"
    key.write_text("k" * 64)
    commands.settings["store"] = {"keyFile": str(key)}
    commands.configure()
    said = commands.run("doctor").stdout
    assert re.search(r"ok +uv is there: uv \d", said) and "npm is" not in said, said
    assert f"ok       packages.store.keyFile: {key} has a key" in said, said
    key.write_text("short")
    tools = {"uv": str(commands.folder / "nowhere/uv")}
    commands.settings["tools"] = tools
    commands.configure()
    done = commands.run("doctor")
    assert f"MISSING  {key}: the key of packages.store.keyFile has 5 bytes" in done.stdout, done.stdout
    del commands.settings["store"]
    commands.configure()
    assert done.returncode == 1 and "there is no such program" in done.stdout and "packages.tools.uv" in done.stdout, done
    stderr = commands.fails(1, "packages", "build", "text")
    assert "packages.tools.uv" in stderr, stderr


def test_an_interrupted_build_leaves_nothing(commands):
    slow = commands.folder / "slow-uv"
    slow.write_text("#!/bin/sh\nsleep 300 & wait\n")
    slow.chmod(0o755)
    commands.settings["tools"] = {"uv": str(slow)}
    commands.configure()
    with commands.store.used():
        started = [BINARY, "--engine", package_sets.engine.KIND, "--config", str(commands.config), "packages", "build", "text"]
        build = subprocess.Popen(started, env=environment(commands.folder / "state2"), stderr=subprocess.PIPE, text=True)
    line = build.stderr.readline()
    assert "is built" in line, line
    while not commands.store.unfinished():
        assert build.poll() is None
    build.terminate()
    assert build.wait(30) == 128 + 15
    assert commands.store.unfinished() == [] and commands.store.sets() == []
    # Its tool is gone, too.
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(slow) not in running
