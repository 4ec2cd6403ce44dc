"""Sandboxes as they are seen from inside, in every way in which a program gets into one, and from outside.

    scripts/python tests/python/inside.py dump FILE        writes what is seen, as JSON
    scripts/python tests/python/inside.py compare OLD NEW  prints where two such files differ

`ISOLATOR_BIN` is the program that makes the sandboxes. Run the first with two versions on one machine, and the second shows what
a change of the engine changes for programs.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import processes
import session_calls
from server import BINARY, configuration, isolator, receipt

LOOK = (Path(__file__).with_name("inside") / "look.py").read_text()

# The same for an interpreter that waits, which runs no program that names this folder.
LOOK_UNNOTICED = LOOK.replace('"/proc"', '"/pr" "oc"')

WAITED_WITHIN_S = 60

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")

# Lines of a process's status that the engine decides.
STATUS = (
    "Umask Uid Gid Groups SigBlk SigIgn SigCgt CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Seccomp_filters".split()
)

# The first of the users that the engine gives to sandboxes and templates.
FIRST_USER = 524_288

SMALL = {"size": 1, "hot": 0}


def _languages(**python):
    python = {"image": "isolator/python", "pool": SMALL} | python
    return {"python": python, "javascript": {"enabled": False}, "go": {"enabled": False}}


async def _program(client, code, preloaded=None):
    """What a program prints, in a new interpreter or in one that waited."""
    with anyio.fail_after(WAITED_WITHIN_S):
        while True:
            result = await client.call_tool("execute_code", {"language": "python", "entrypoint_code": code})
            assert not result.is_error, result.content
            if preloaded in (None, receipt(result)["preloaded"]):
                return _relative(json.loads(result.structured_content["stdout"]))
            await anyio.sleep(0.2)


def _outside(pid):
    """A process as root of the machine sees it."""
    of = Path(f"/proc/{pid}")
    first = int((of / "uid_map").read_text().split()[1])
    status = dict(line.split(":", 1) for line in (of / "status").read_text().splitlines())
    status = {name: " ".join(status[name].split()) for name in STATUS}
    for name in ("Uid", "Gid"):
        (number,) = set(map(int, status[name].split()))
        status[name] = f"+{number - first}" if first else "another" if number >= FIRST_USER else str(number)
    links = {(entry, os.readlink(entry)) for entry in (of / "fd").iterdir()}
    mounts = [line.split(" ") for line in (of / "mountinfo").read_text().splitlines()]
    fields = (of / "stat").read_text().rpartition(")")[2].split()
    return {
        "status": status,
        "namespaces": [name for name in NAMESPACES if processes.namespace(pid, name) != processes.namespace("self", name)],
        # How many of each there are depends on the sandboxes and programs of the moment.
        "descriptors": sorted({re.sub("[0-9]+", "*", link) for _, link in links}),
        "limits": [re.sub(r"\s{2,}", "  ", line.strip()) for line in (of / "limits").read_text().splitlines()[1:]],
        "score": (of / "oom_score_adj").read_text().strip(),
        "command": (of / "cmdline").read_text().replace("\0", " ").strip(),
        "environment": sorted(filter(None, (of / "environ").read_text().split("\0"))),
        "folders": [os.readlink(of / "root"), os.readlink(of / "cwd")],
        "mounts": sorted(" ".join([mount[4], mount[5], mount[mount.index("-") + 1]]) for mount in mounts),
        "leads": [name for name, leader in (("group", fields[2]), ("session", fields[3])) if int(leader) == pid],
        "users": [" ".join(line.split()[::2]) for line in (of / "uid_map").read_text().splitlines()],
    }


def _innermost(pid):
    """Its number in the innermost process namespace, and how many such namespaces it is in."""
    numbers = re.search(r"^NSpid:(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1].split()
    return int(numbers[-1]), len(numbers)


def _all_outside(server):
    """A process of each kind that a server has: its launchers, templates, and process 1 of a sandbox."""
    found = {}
    for outer in processes.children(server):
        found.setdefault("the launcher that waits", _outside(outer))
        for inner in processes.children(outer):
            found.setdefault("the launcher that makes sandboxes", _outside(inner))
            for child in processes.children(inner):
                # What makes a sandbox is here only for a moment.
                with suppress(OSError):
                    number, depth = _innermost(child)
                    command = Path(f"/proc/{child}/cmdline").read_text()
                    if number == 1 and depth == 3:
                        found.setdefault("process 1 of a sandbox", _outside(child))
                    elif depth == 2 and command.startswith("python3"):
                        found.setdefault("a template", _outside(child))
    return found


async def _settled(server):
    """The same when no launcher makes a sandbox, for which it has more descriptors for a moment: two looks have to agree."""
    before = None
    with anyio.fail_after(WAITED_WITHIN_S):
        while (found := _all_outside(server)) != before or len(found) < 4:
            before = found
            await anyio.sleep(0.2)
    return found


# Commands of root in a mount namespace of its own, before it becomes a user who was granted 65536 others.
_ROOTLESS = r"""
set -eu
home=$1 data=$2; shift 2
for file in subuid subgid; do mount --bind "$home/$file" "/etc/$file"; done
mount --bind "$data" "$home/data/isolator"
exec setpriv --reuid daemon --regid daemon --clear-groups "$@"
"""


@contextmanager
def rootless(arguments):
    """A command line of the program as a user without root, with the images of whoever runs the tests, and its environment."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "isolator"
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o777)
        (home / "data/isolator").mkdir(parents=True)
        for file in ("subuid", "subgid"):
            (home / file).write_text("daemon:2000000000:65536\n")
        # A user may have no way into the folder in which it was built.
        shutil.copy(BINARY, home / "isolator")
        config = configuration(
            home, engine={"kind": "embedded", "allowUnlimited": True}, languageSettings=_languages(), promptsDir=str(home)
        )
        config.chmod(0o644)
        variables = {
            name: str(home / place)
            for name, place in [
                ("HOME", "."),
                ("XDG_DATA_HOME", "data"),
                ("XDG_STATE_HOME", "state"),
                ("XDG_CONFIG_HOME", "config"),
            ]
        }
        command = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            _ROOTLESS,
            "sh",
            str(home),
            str(data),
            str(home / "isolator"),
            "--engine",
            "embedded",
            "--config",
            str(config),
            *arguments,
        ]
        yield command, {"PATH": os.environ["PATH"]} | variables, home


def _rootless_program():
    with rootless(["run", "--language", "python", "-"]) as (command, variables, home):
        done = subprocess.run(command, env=variables, cwd=home, input=LOOK, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return _relative(json.loads(done.stdout))


async def look(folder):
    """Every way into a sandbox, with what is seen on it."""
    seen = {}
    small = _languages(preload={"modules": []})
    async with isolator(folder, "stdio-auto", configuration(folder, languageSettings=small)) as server:
        seen["a program in a new interpreter"] = await _program(server.client, LOOK)
        seen["a program in a fork of a template"] = await _program(server.client, LOOK_UNNOTICED, preloaded=True)
        tools = await session_calls.Tools.of(server.client)
        async with session_calls.opened(tools) as session:
            cell = await session.cell(LOOK)
            seen["a cell of a session"] = _relative(json.loads(cell["stdout"]))
            command = await session.command("cat > look.py <<'END'\n" + LOOK + "\nEND\npython3 look.py")
            seen["a command of a session"] = _relative(json.loads(command["stdout"]))
        await anyio.sleep(1)
        async with session_calls.opened(tools) as session:
            await session.cell("1")
            seen |= await _settled(server.pid)
    folder = folder / "without"
    folder.mkdir()
    plain = _languages(preload={"modules": [], "fork": False})
    async with isolator(folder, "stdio-auto", configuration(folder, languageSettings=plain)) as server:
        seen["a program in an interpreter that waited"] = await _program(server.client, LOOK_UNNOTICED, preloaded=True)
    folder = folder / "open"
    folder.mkdir()
    writable = configuration(folder, languageSettings=_languages(), defaultReadOnlyRootfs=False)
    async with isolator(folder, "stdio-auto", writable) as server:
        seen["a program with a writable root"] = await _program(server.client, LOOK)
    folder = folder / "home"
    folder.mkdir()
    with_home = _languages(writableRoot=True, preload={"modules": []})
    async with isolator(folder, "stdio-auto", configuration(folder, languageSettings=with_home)) as server:
        seen["a program with a home"] = await _program(server.client, LOOK)
        tools = await session_calls.Tools.of(server.client)
        async with session_calls.opened(tools) as session:
            cell = await session.cell(LOOK)
            seen["a cell with a home"] = _relative(json.loads(cell["stdout"]))
    seen["a program without root"] = await anyio.to_thread.run_sync(_rootless_program)
    return seen


def _relative(seen):
    """The same with users of a sandbox as numbers from its first one, which is another in each sandbox."""
    # The kernel writes users of mounts as the machine has them, and those of the map as the process does that made the sandbox.
    (first,) = {int(uid) for line in seen["mounts"] if line.startswith("/dev ") for uid in re.findall(r"uid=(\d+)", line)} or {
        0
    }
    seen["mounts"] = [
        re.sub(r"\b(uid|gid)=(\d+)", lambda it: f"{it[1]}=+{int(it[2]) - first}", line) for line in seen["mounts"]
    ]
    for name in ("uid_map", "gid_map"):
        seen["users"][name] = [
            f"{inner} {outer if first != int(outer) else '*'} {count}"
            for inner, outer, count in map(str.split, seen["users"][name])
        ]
    return seen


def _flat(value, path=()):
    """Every leaf with the way to it. The items of a list are leaves by themselves."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, (*path, name))
    elif isinstance(value, list):
        for item in value:
            yield (*path, str(item)), "there"
        if not value:
            yield (*path, "nothing"), "there"
    else:
        yield path, str(value)


def compare(old, new):
    """Lines that differ, with the old and the new value."""
    lines = []
    for way in sorted(old.keys() | new.keys()):
        before, after = (dict(_flat(of.get(way, {}))) for of in (old, new))
        for path in sorted(before.keys() | after.keys()):
            if before.get(path) != after.get(path):
                lines.append((way, " / ".join(path), before.get(path, "-"), after.get(path, "-")))
    return lines


def main(what, *files):
    if what == "dump":
        with tempfile.TemporaryDirectory() as folder:
            seen = anyio.run(look, Path(folder))
        Path(files[0]).write_text(json.dumps(seen, indent=1, sort_keys=True))
    elif what == "compare":
        lines = compare(*(json.loads(Path(file).read_text()) for file in files))
        for way, path, before, after in lines:
            print(f"| {way} | {path} | {before} | {after} |")
        print(f"{len(lines)} lines differ", file=sys.stderr)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
