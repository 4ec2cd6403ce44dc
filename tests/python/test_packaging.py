"""The forms in which the server is published, each tried with the program that installs it."""

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from by_hand import CLIENT, MODERN, python
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from server import BINARY, ROOT

TARGET = Path(BINARY).parents[1]


def codename():
    """This machine's Debian release."""
    lines = Path("/etc/os-release").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)["VERSION_CODENAME"]


# What `scripts/test-packages` makes.
DEBIAN = f"isolator-test/debian-systemd:{codename()}"


def ran(*command, within=120, **options):
    """The standard output of a program. It must succeed."""
    command = [str(part) for part in command]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=within, **options)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def built(script, *arguments, within=300, **variables):
    """The package that a script makes of the binary under test: the last line of its output."""
    variables = os.environ | {"ISOLATOR_BIN": BINARY, "CARGO_TARGET_DIR": str(TARGET)} | variables
    return ran(ROOT / "scripts" / script, *arguments, within=within, env=variables).splitlines()[-1]


async def says(command, environment, **arguments):
    """The output of a program on a server that a host has started with this command."""
    place = stdio_client(StdioServerParameters(command=str(command[0]), args=[str(part) for part in command[1:]], env=environment))
    async with Client(place, read_timeout_seconds=60) as client:
        answer = await client.call_tool("execute_code", {"language": "python", "entrypoint_code": "print(6 * 7)"} | arguments)
        return answer.structured_content["stdout"]


# What a machine without Rust has.
WITHOUT_RUST = "/usr/local/bin:/usr/bin:/bin"


@pytest.mark.release
@pytest.mark.any_engine
async def test_a_wheel_is_installed_and_serves_without_rust(tmp_path):
    wheel = built("wheel")
    with zipfile.ZipFile(wheel) as archive:
        (inside,) = [name for name in archive.namelist() if name.endswith(".data/scripts/isolator")]
        assert archive.read(inside) == Path(BINARY).read_bytes(), "it has another binary"
    ran(sys.executable, "-m", "venv", tmp_path / "venv")
    plain = {"HOME": str(tmp_path), "PATH": WITHOUT_RUST}
    ran(tmp_path / "venv/bin/pip", "install", "--quiet", "--no-index", wheel, env=plain)
    command = tmp_path / "venv/bin/isolator"
    version = ran(BINARY, "--version")
    assert ran(command, "--version", env=plain) == version
    # Where the images of this machine are.
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local/share")
    hosts = plain | {"XDG_DATA_HOME": data, "ISOLATOR_POOL__SIZE": "0", "ISOLATOR_POOL__HOT": "0"}
    assert await says([command, "--engine", "embedded", "serve"], hosts) == "42\n"
    ran(tmp_path / "venv/bin/pip", "uninstall", "--quiet", "--yes", "isolator", env=plain)
    assert not command.exists()

    uvx = shutil.copy(ROOT / ".venv/bin/uvx", tmp_path / "uvx")
    shutil.copy(ROOT / ".venv/bin/uv", tmp_path / "uv")
    start = [uvx, "--offline", "--python", sys.executable, "--from", wheel, "isolator"]
    assert ran(*start, "--version", env=plain) == version
    assert await says([*start, "--engine", "embedded", "serve"], hosts) == "42\n"


@pytest.mark.release
@pytest.mark.only_on("docker")
async def test_a_container_image_serves_through_the_socket_of_docker():
    # Another base than that of this Debian would have to be pulled or made.
    name = built("container", "isolator-test/server", RUNTIME_IMAGE=DEBIAN)
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    socket = Path(host.removeprefix("unix://"))
    assert socket.exists(), "this test needs the socket of Docker"
    start = ["docker", "run", "--rm", "--interactive", "--network", "none", "--volume", f"{socket}:/var/run/docker.sock"]
    start += ["--group-add", str(socket.stat().st_gid), "--env", "ISOLATOR_POOL__SIZE=0", "--env", "ISOLATOR_POOL__HOT=0", name]
    assert await says([*start, "--engine", "docker", "serve"], dict(os.environ)) == "42\n"
    inside = json.loads(ran("docker", "image", "inspect", name))[0]["Config"]
    assert (inside["User"], inside["Entrypoint"], inside["Cmd"]) == ("isolator", ["isolator"], ["serve"])


class Machine:
    """A Debian under its own systemd, in a container."""

    def __init__(self, container):
        self.container = container

    def run(self, *command, within=60):
        return ran("docker", "exec", self.container, *command, within=within)

    def sh(self, script, within=60):
        return self.run("sh", "-euc", script, within=within)

    def fails(self, *command):
        """The exit code of a command that fails, and what it prints."""
        command = ["docker", "exec", self.container, *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0, done
        return done.returncode, done.stdout.strip()

    def put(self, path, to):
        ran("docker", "cp", path, f"{self.container}:{to}")

    def until(self, script, seconds, what):
        """Waits until a script succeeds."""
        end = time.monotonic() + seconds
        command = ["docker", "exec", self.container, "sh", "-euc", script]
        while subprocess.run(command, capture_output=True, timeout=60).returncode != 0:
            if time.monotonic() > end:
                log = self.sh("journalctl --no-pager -n 60; systemctl status isolator --no-pager || :")
                raise AssertionError(f"not within {seconds} s: {what}\n{log}")
            time.sleep(0.2)


# Docker mounts these read-only, and systemd and the engine need to write there.
START = """mount -o remount,rw /sys
for place in $(grep -E ' /sys(/| )' /proc/self/mounts | cut -d' ' -f2); do mount -o remount,bind,rw "$place"; done
exec /sbin/init"""


@contextmanager
def machine(*options):
    """Starts one. It is privileged, but for a capability that root lacks on some machines."""
    start = ["docker", "run", "--detach", "--rm", "--cap-add", "ALL", "--cap-drop", "SYS_RESOURCE", "--network", "none"]
    for part in ("seccomp", "apparmor", "systempaths"):
        start += ["--security-opt", f"{part}=unconfined"]
    start += ["--cgroupns", "private", "--tmpfs", "/run", "--tmpfs", "/run/lock", *options]
    container = ran(*start, DEBIAN, "sh", "-euc", START).strip()
    try:
        found = Machine(container)
        # With units that can't run in a container it is degraded.
        found.until("systemctl is-system-running | grep -E 'running|degraded'", 60, "a system that has started")
        yield found
    finally:
        ran("docker", "rm", "--force", container)


CALL = ["curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "30", "http://127.0.0.1:8000/mcp"]
CALL += ["--header", "content-type: application/json", "--header", "accept: application/json, text/event-stream"]
CALL += ["--header", f"mcp-protocol-version: {MODERN}", "--header", "mcp-method: tools/call", "--header", "mcp-name: execute_code"]


def call(debian, code):
    """The output of a program on the service, and its kind of start."""
    message = python(1, code)
    message["params"]["_meta"] = CLIENT
    result = json.loads(debian.run(*CALL, "--data", json.dumps(message)))["result"]
    return result["structuredContent"]["stdout"], result["_meta"]["isolator/receipt"]["start"]


# The variables of the service, for commands in a shell.
AS_SERVICE = "set -a; . /etc/isolator/environment; set +a; "


@pytest.mark.release
@pytest.mark.any_engine
def test_a_debian_package_is_installed_serves_under_systemd_and_is_purged(tmp_path):
    package = built("deb")
    again = shutil.copy(package, tmp_path / "first.deb")
    assert Path(built("deb")).read_bytes() == Path(again).read_bytes(), "the same binary makes another package"
    image = tmp_path / "python.tar"
    ran("docker", "save", "isolator/python", "--output", image)
    with machine("--volume", f"{image}:/python.tar:ro") as debian:
        debian.put(package, "/isolator.deb")
        assert "systemctl enable --now isolator" in debian.run("dpkg", "--install", "/isolator.deb")
        debian.run("dpkg", "--verify", "isolator")
        listed = debian.run("dpkg-query", "--listfiles", "isolator").split()
        assert {"/usr/bin/isolator", "/usr/share/man/man1/isolator-serve.1.gz", "/etc/isolator/environment"} <= set(listed)
        assert debian.sh("stat -c '%a %U %G' /etc/isolator").split() == ["750", "root", "isolator"]
        assert ":" in debian.run("grep", "^isolator:", "/etc/subuid", "/etc/subgid")
        assert "isolator-serve" in debian.run("man", "-w", "isolator-serve")
        # It is off until a user starts it.
        assert debian.fails("systemctl", "is-enabled", "isolator")[1] == "disabled"

        debian.sh(AS_SERVICE + "isolator image import /python.tar", within=120)
        debian.run("systemctl", "enable", "--now", "--quiet", "isolator")
        status = debian.run("systemctl", "show", "--value", "--property=StatusText", "isolator").strip()
        assert status == "serving clients at http://127.0.0.1:8000/mcp"
        assert call(debian, "print(6 * 7)")[0] == "42\n"
        end = time.monotonic() + 30
        while call(debian, "import os; print(os.getuid())") != ("1000\n", "hot"):
            assert time.monotonic() < end, "no hot start within 30 s"

        # What was changed in the configuration stays, and the server that runs is replaced.
        debian.sh("sed -i 's/\"embedded\" }/\"embedded\" }, \"pool\": { \"size\": 3 }/' /etc/isolator/isolator_config.json")
        before = debian.run("systemctl", "show", "--value", "--property=MainPID", "isolator")
        debian.run("dpkg", "--install", "--force-confold", "/isolator.deb")
        assert debian.run("systemctl", "show", "--value", "--property=MainPID", "isolator") != before
        assert '"size": 3' in debian.run("cat", "/etc/isolator/isolator_config.json")
        assert call(debian, "print(1)")[0] == "1\n"

        # A server that is killed is started again.
        debian.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", "isolator")
        debian.until("[ \"$(systemctl show --value --property=NRestarts isolator)\" = 1 ] && systemctl is-active isolator",
                     30, "a server that was started again")
        assert call(debian, "print(2)")[0] == "2\n"

        debian.run("systemctl", "stop", "isolator")
        assert debian.run("systemctl", "show", "--value", "--property=Result", "isolator").strip() == "success"
        assert debian.fails("pgrep", "isolator") == (1, "")
        debian.run("systemctl", "start", "isolator")
        debian.run("dpkg", "--remove", "isolator")
        assert debian.fails("pgrep", "isolator") == (1, "")
        debian.sh("test -e /etc/isolator/environment && test -d /var/lib/isolator")
        debian.run("dpkg", "--purge", "isolator")
        left = debian.sh("find / -xdev -path /proc -prune -o -iname '*isolator*' -print; getent passwd isolator || :")
        assert left.split() == ["/isolator.deb"]
        assert debian.sh("grep isolator /etc/subuid /etc/group /etc/shadow || :") == ""
