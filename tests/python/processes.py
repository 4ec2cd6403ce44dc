"""Processes as the kernel tells of them."""

import os
import re
from contextlib import suppress
from pathlib import Path


def children(pid):
    """The children of a process, by whichever of its threads."""
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        # A thread may end meanwhile.
        with suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def status(pid, field):
    """A number of a process's status, such as its memory in KiB: "VmRSS", or "VmHWM" for the most of it ever."""
    return int(re.search(rf"^{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1])


def open_files(pid):
    """How many descriptors a process has."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def state(pid):
    """Its state, such as "Z" for one that has ended and was not reaped; None if there is no such process."""
    try:
        return _stat(pid)[0]
    except OSError:
        return None


def cpu_seconds(pid):
    """User and system time of a process."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stat(pid):
    """The fields after the name, which may have blanks."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def all_pids():
    """Every process that there is."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def pss(pid):
    """Its memory in KiB, of which what it shares with others counts in parts."""
    return int(re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)[1])


def namespace(pid, kind):
    """The namespace that it is in, such as that for "pid" or "net"; None when there is no such process."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return None


def has_sandboxes(launcher):
    """Whether a launcher of the embedded engine has some. What else it has is in its own namespaces."""
    own = namespace(launcher, "pid")
    return any(namespace(child, "pid") not in (own, None) for child in children(launcher))


def open_paths(pid):
    """The targets of its descriptors, as the process sees them."""
    found = []
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(entry.path))
    return found


def cpu_groups(pid):
    """The folders of its control groups that count CPU time, of both versions where there are both.

    The topmost group is left out, which counts everything.
    """
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    roots = {}
    for mount in mounts:
        kind, options = mount[mount.index("-") + 1], mount[-1].split(",")
        if kind == "cgroup2":
            roots[""] = mount[4]
        elif kind == "cgroup" and "cpuacct" in options:
            roots["cpuacct"] = mount[4]
    found = set()
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if path != "/":
                found |= {Path(roots[name] + path) for name in controllers.split(",") if name in roots}
    return found


def group_cpu_us(group):
    """The CPU time in microseconds that a control group and those below it have used; None where it is not counted."""
    for file, field, unit in (("cpuacct.usage", r"(\d+)", 1000), ("cpu.stat", r"usage_usec (\d+)", 1)):
        with suppress(OSError):
            if counted := re.search(field, (group / file).read_text()):
                return int(counted[1]) // unit
    return None
