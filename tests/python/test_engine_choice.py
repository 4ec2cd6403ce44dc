"""Which engine is used where docker's settings name one that can't be: those of a program that was removed, say."""

import hashlib
import json
import os
import subprocess

import pytest
from server import BINARY, CONFIG

pytestmark = pytest.mark.any_engine

# Where no Docker listens at any of the usual places.
WITHOUT_DOCKER = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "-"]

PIPE = "npipe:////./pipe/docker_engine"


def run(home, kind="auto", **variables):
    """Runs a program as a user with this home, whose settings of docker are only those."""
    # Only the images are the user's own.
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    given = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_DATA_HOME": data, "RUST_LOG": "isolator=info"}
    command = [*WITHOUT_DOCKER, BINARY, "--engine", kind, "--config", str(CONFIG), "run", "--language", "python", "-"]
    return subprocess.run(
        command, env=given | variables, input="print(1)", capture_output=True, text=True, timeout=60, cwd=home
    )


def context(home, name, meta):
    """Makes a context of docker and selects it."""
    (home / ".docker").mkdir()
    (home / ".docker/config.json").write_text(json.dumps({"currentContext": name}))
    folder = home / ".docker/contexts/meta" / hashlib.sha256(name.encode()).hexdigest()
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(meta)
    # What lies beside it is of no interest.
    (folder.parent / "stray").touch()


def endpoint(host):
    return json.dumps({"Name": "left", "Endpoints": {"docker": {"Host": host}}})


CONTEXTS = {
    "nobody answers": (endpoint("unix:///nowhere/docker.sock"), "no container engine answers at unix:///nowhere"),
    "a pipe": (endpoint(PIPE), "named pipes are only on Windows"),
    "ssh": (endpoint("ssh://me@lab"), "run `ssh -N -L"),
    "empty": ("", "is no description of a context"),
    "nothing in it": ("{}", "it has no docker endpoint"),
}


@pytest.mark.parametrize("left", CONTEXTS)
def test_a_stale_context_is_ignored_unless_docker_was_requested(tmp_path, left):
    meta, why = CONTEXTS[left]
    context(tmp_path, "left", meta)
    ran = run(tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "1\n"), ran.stderr
    assert why in ran.stderr

    asked_for = run(tmp_path, kind="docker")
    assert asked_for.returncode == 125 and why in asked_for.stderr, asked_for.stderr


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"DOCKER_HOST": ""}, ""),
        ({"DOCKER_HOST": " '' "}, ""),
        ({"DOCKER_HOST": PIPE}, "named pipes are only on Windows"),
        ({"DOCKER_HOST": "ssh://me@lab"}, "unix:///tmp/docker.sock"),
        ({"DOCKER_CONTEXT": "none"}, "it is not in docker's list of contexts"),
    ],
)
def test_variables_that_name_no_engine_are_ignored(tmp_path, variables, why):
    ran = run(tmp_path, **variables)
    assert (ran.returncode, ran.stdout) == (0, "1\n"), ran.stderr
    assert why in ran.stderr
    if why:
        asked_for = run(tmp_path, kind="docker", **variables)
        assert asked_for.returncode == 125 and why in asked_for.stderr, asked_for.stderr


@pytest.mark.parametrize("address", ["/nowhere/x.sock", "unix:/nowhere/x.sock", ' "unix:///nowhere/x.sock" '])
def test_an_address_is_understood_however_it_is_written(tmp_path, address):
    ran = run(tmp_path, DOCKER_HOST=address)
    assert ran.returncode == 125 and "no container engine answers at unix:///nowhere/x.sock" in ran.stderr, ran.stderr
