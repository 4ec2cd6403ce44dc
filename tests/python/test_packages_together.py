"""Several sets in one call: the locks of each hold for all of them, and contradictions name their sets."""

import shutil

import package_sets
import pytest
from package_index import Index
from package_sets import Store, node_set, packages, python_set

pytestmark = pytest.mark.any_engine

SETS = {
    "python": {
        "one": python_set("alpha==1.*"),
        "other": python_set("hook"),
        "older": python_set("alpha<1.1"),
        "parts": python_set("gamma"),
    },
    "javascript": {
        "one": node_set("plain@^1.0.0 || ^3.0.0"),
        "other": node_set("dual"),
        "older": node_set("plain@<1.1"),
        "parts": node_set("@scope/part"),
    },
}

# The versions of what a set asks for, and of what comes with that.
PROGRAMS = {
    "python": "from importlib.metadata import version; print(version('alpha'), version('gamma'))",
    "javascript": "for (const name of ['plain', '@scope/part']) console.log(require(`${name}/package.json`).version)",
}
LOCKED = {"python": ["1.1", "1.0"], "javascript": ["1.1.0", "1.0.0"]}
NEWEST = {"python": ["1.2", "1.5"], "javascript": ["1.2.0", "1.5.0"]}


def publish(index, language, again=False):
    """Publishes newer versions, or other files for those that are there."""
    for name, dependency, version in (("alpha", "Requires-Dist: gamma>=1", "1.1" if again else "1.2"), ("gamma", "", "1.0" if again else "1.5")):
        files = {f"{name}.py": "of_another = True\n"}
        if language == "python":
            index.packages.wheel(name, version, *filter(None, [dependency]), files=files)
        else:
            module = {"alpha": "plain", "gamma": "@scope/part"}[name]
            dependencies = {"dependencies": {"@scope/part": "^1.0.0"}} if dependency else {}
            index.packages.module(module, f"{version}.0", {"index.js": "exports.ofAnother = true"}, **dependencies)


class Together:
    """Commands with a configuration, an index and a store of their own."""

    def __init__(self, folder, index, language):
        self.folder, self.language = folder, language
        self.store = Store(folder / "data")
        address = {"python": index.python(), "javascript": index.javascript()}
        self.config = package_sets.config(folder, SETS[language], address)
        self.program = folder / {"python": "main.py", "javascript": "main.js"}[language]
        self.program.write_text(PROGRAMS[language])

    def lock(self, *sets):
        done = package_sets.command(self.folder, self.config, self.store, "packages", "lock", *sets)
        assert done.returncode == 0, done

    def run(self, *sets):
        asked = [part for name in sets for part in ("--packages", name)]
        return package_sets.command(self.folder, self.config, self.store, "run", *asked, str(self.program))

    def versions(self, *sets):
        done = self.run(*sets)
        assert done.returncode == 0, done
        return done.stdout.split()

    def fails(self, *sets):
        done = self.run(*sets)
        assert done.returncode == 125 and done.stdout == "", done
        return done.stderr


@pytest.fixture(params=SETS)
def together(request, tmp_path):
    with Index(packages()) as index:
        found = Together(tmp_path, index, request.param)
        found.index = index
        yield found


def test_sets_that_are_asked_for_together_keep_to_their_locks(together):
    together.lock("one")
    publish(together.index, together.language)
    assert together.versions("one", "other") == LOCKED[together.language]
    assert together.versions("one", "parts") == LOCKED[together.language]
    # Without the lock, that set is not the same anymore.
    shutil.rmtree(together.folder / "isolator.lock")
    assert together.versions("one", "other") == NEWEST[together.language]


def test_contradicting_locks_are_reported_by_their_sets(together):
    together.lock("one", "older")
    stderr = together.fails("one", "older")
    newer = LOCKED[together.language][0]
    for part in ("sets older and one can't be used together", f"{newer} in that of one", "isolator packages lock older one"):
        assert part in stderr, stderr
    # What has no lock is resolved beside it, or not.
    shutil.rmtree(together.folder / "isolator.lock/older")
    stderr = together.fails("one", "older")
    assert "versions in the locks of one" in stderr, stderr
    assert together.versions("one") == LOCKED[together.language]


def test_files_that_are_not_those_of_the_locks_are_refused(together):
    together.lock("one")
    publish(together.index, together.language, again=True)
    stderr = together.fails("one", "other")
    assert "tampered" in stderr and "isolator packages lock" in stderr, stderr
