"""A look at the embedded engine, through the kernel's files: control groups, processes, mounts."""

import hashlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from sandbox import Sandbox

# How long a process that was killed may be there until the kernel has taken it apart.
PATIENCE_S = 10

# The group of an instance: its name, and its process with namespace and start.
_GROUP = re.compile(r"([^+]+)\+pid:[^+]+\+\d+\+\d+")


def _hierarchies():
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [Path(m[4]) for m in mounts if m[m.index("-") + 1] in ("cgroup", "cgroup2")]


def _directories(path):
    try:
        return [Path(entry.path) for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _below(path):
    """All folders below one, of which any may go meanwhile."""
    for folder in _directories(path):
        yield folder
        yield from _below(folder)


def _all_groups():
    return [group for hierarchy in _hierarchies() for group in _below(hierarchy)]


def _groups(instance):
    """The groups of an instance, wherever in the hierarchies they are."""
    matches = ((group, _GROUP.fullmatch(group.name)) for group in _all_groups())
    return [group for group, match in matches if match and match[1] == instance]


def _read(path):
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _state(groups):
    if not any(_read(group / "cgroup.procs") for group in groups):
        return "stopped"
    frozen = any(
        _read(group / "freezer.state") == "FROZEN\n" or "frozen 1" in _read(group / "cgroup.events")
        for group in groups
    )
    return "paused" if frozen else "running"


def _image(groups):
    pids = {pid for group in groups for pid in _read(group / "cgroup.procs").split()}
    for pid in pids:
        for mount in _read(f"/proc/{pid}/mountinfo").splitlines():
            # The image lies below an overlay, and is named in its options.
            if mount.split()[4] == "/" and (digest := re.search(r"/([0-9a-f]{64})/", mount)):
                return f"sha256:{digest[1]}"
    return ""


FAULTS = ("killed", "thawed")

# And what may happen to one that runs.
RUNNING_FAULTS = ("killed", "paused")


def harm(sandbox, fault):
    for group in [group for group in _all_groups() if group.name == sandbox]:
        if fault == "thawed":
            _write(group / "freezer.state", "THAWED")
            _write(group / "cgroup.freeze", "0")
        elif fault == "paused":
            # Where there are both versions, the server freezes and looks by the second.
            _write(group / "cgroup.freeze", "1")
        else:
            for pid in _read(group / "cgroup.procs").split():
                _kill(int(pid))


def _write(path, text):
    try:
        if path.exists():
            path.write_text(text)
    except OSError:
        pass


def _kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def memory(children):
    status = [_read(f"/proc/{pid}/status") for pid in children]
    return sum(int(text.split("VmRSS:")[1].split()[0]) for text in status if "VmRSS:" in text)


def all_processes():
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and "isolator/instances/embedded" in _read(f"/proc/{entry.name}/mountinfo"):
            yield entry.name


def sandboxes(instance):
    found = {}
    for group in _groups(instance):
        for path in _directories(group):
            found.setdefault(path.name, []).append(path)
    return [Sandbox(name, _state(groups), _image(groups)) for name, groups in found.items()]


def _store():
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "isolator"


def _names():
    return json.loads((_store() / "names.json").read_text())


def _name(name, digest):
    """As the store does, so that no server sees half of the file."""
    new = _store() / "names.json.new"
    # The file has names with everything that a short one leaves out.
    new.write_text(json.dumps(_names() | {f"docker.io/{name}:latest": digest}))
    new.rename(_store() / "names.json")


def image_id(name):
    return _names()[f"docker.io/{name}:latest"]


def tag(image, name):
    _name(name, image_id(image))


def derive(image, name, variable):
    images = _store() / "images"
    hexadecimal = hashlib.sha256(name.encode()).hexdigest()
    copy = images / hexadecimal
    subprocess.run(["cp", "-a", "--link", images / image_id(image).removeprefix("sha256:"), copy], check=True)
    description = json.loads((copy / "image.json").read_text())
    description["digest"] = f"sha256:{hexadecimal}"
    description["env"].append(variable)
    # The other one has a link to the same file.
    (copy / "image.json").unlink()
    (copy / "image.json").write_text(json.dumps(description))
    _name(name, description["digest"])


def _processes(instance):
    """Launchers and what is in sandboxes: only they have an instance's files in sight."""
    pids = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    mark = f"{instance}+"
    return [
        (pid, _read(f"/proc/{pid}/cmdline").replace("\0", " "))
        for pid in pids
        if mark in _read(f"/proc/{pid}/mountinfo") or mark in _read(f"/proc/{pid}/cgroup")
    ]


def left(instance, state):
    until = time.monotonic() + PATIENCE_S
    while (processes := _processes(instance)) and time.monotonic() < until:
        time.sleep(0.01)
    shared = Path(state, "isolator/instances/embedded").glob(f"{instance}+*")
    mounts = _read("/proc/self/mountinfo").splitlines()
    return processes + _groups(instance) + list(shared) + [m for m in mounts if instance in m]
