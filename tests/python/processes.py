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
    """Its state, such as "Z" for one that has ended and that nobody has asked about; None when there is no such process."""
    try:
        return _stat(pid)[0]
    except OSError:
        return None


def cpu_seconds(pid):
    """User and system time of a process."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stat(pid):
    """What follows the name, which may have blanks."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
