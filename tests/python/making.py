"""Faults in the making of a sandbox: every system call of the processes that make it can fail, or be their last.

`strace` attaches to the launchers of a server, which need no part of a test in them.
"""

import os
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from resource import prlimit

import anyio
import engine
import processes

# Errors as the kernel gives them when something runs out. Other calls fail because there is no memory.
ERRORS = {
    "EMFILE": ["openat", "openat2", "socket", "socketpair", "pipe2", "dup3", "fcntl", "pidfd_open", "open_tree", "fsopen", "fsmount", "accept4"],
    "EAGAIN": ["clone", "clone3", "fork", "vfork", "setresuid"],
    "ENOSPC": ["write", "mkdir", "mkdirat", "mknodat", "unshare", "mount", "move_mount", "symlink", "symlinkat"],
    "EPERM": ["capset", "sethostname", "setresgid", "setgroups", "seccomp", "prctl", "prlimit64", "setns", "setsid", "pivot_root", "keyctl"],
    "EIO": ["read", "pread64", "getdents64", "execve", "execveat", "readlink", "readlinkat", "chdir", "fchdir"],
    "ENOMEM": [
        "mmap", "brk", "mount_setattr", "fsconfig", "umount2", "statx", "newfstatat", "fstatfs", "statfs", "faccessat2", "ioctl", "sendmsg",
        "recvmsg", "sendto", "recvfrom", "connect", "bind", "epoll_ctl", "wait4", "waitid", "unlink", "unlinkat", "close_range",
        "capget", "dup2", "fchmodat", "fchownat", "chown", "lseek",
    ],
}  # fmt: skip
ERROR_OF = {call: error for error, calls in ERRORS.items() for call in calls}

ATTACHED_WITHIN_S = 10
LEFT_WITHIN_S = 10

# Fewer than what would be left, if every fault left one.
MORE_DESCRIPTORS = 24


def launchers(server):
    """The processes that make sandboxes."""
    return [inner for outer in processes.children(server) for inner in processes.children(outer)]


def helpers(server):
    """The processes that map users, and those that mount packages: forks of the launchers."""
    return [pid for pid in _below_launchers(server) if "\0inner\0" in _command(pid)]


def templates(server):
    """The interpreters that are forked into sandboxes."""
    return [pid for pid in _below_launchers(server) if _command(pid).startswith("python3")]


def _below_launchers(server):
    return [child for launcher in launchers(server) for child in processes.children(launcher)]


def _command(pid):
    # One may end meanwhile.
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


@contextmanager
def traced(pids, *options):
    """`strace` shows, or changes, the calls of these processes and all that they start. Gives the folder with a file for each."""
    attached = [pid for pid in pids if _tracer(pid) is not None]
    attach = [word for pid in attached for word in ("-p", str(pid))]
    with tempfile.TemporaryDirectory() as folder:
        command = ["strace", "-ff", "-q", "-o", f"{folder}/of", *options, *attach]
        strace = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + ATTACHED_WITHIN_S
            # One that has just ended is not waited for.
            while any(_tracer(pid) == 0 for pid in attached):
                assert strace.poll() is None and time.monotonic() < until, command
                time.sleep(0.005)
            yield Path(folder)
        finally:
            # If it is only terminated it first stops each process, and one that stands still until its child goes on does not.
            strace.kill()
            strace.wait()


def _tracer(pid):
    """The process that traces this one, 0 if there is none; None if this one has ended."""
    try:
        return processes.status(pid, "TracerPid") if processes.state(pid) != "Z" else None
    except OSError:
        return None


def kill(pids):
    for pid in pids:
        # It may have ended by itself.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def calls(folder):
    """How often a process of those that made a sandbox has made each call, at most, until it became another program."""
    most = Counter()
    for file in folder.iterdir():
        text = file.read_text(errors="replace").partition("\nexecve(")[0]
        most |= Counter(re.findall(r"^(\w+)\(", text, re.MULTILINE))
    return {call: count for call, count in sorted(most.items()) if call in ERROR_OF}


def text(folder):
    """All calls of all processes."""
    return "".join(file.read_text(errors="replace") for file in folder.iterdir())


def left(server):
    """What there is of a server without a sandbox, the most of each kind. It must be no more after a fault."""
    found = Counter(
        {"sandboxes": len(engine.sandboxes(server.instance)), "descriptors of the server": processes.open_files(server.pid)}
    )
    for launcher in launchers(server.pid):
        # One may end meanwhile.
        with suppress(OSError):
            found |= {
                "descriptors of a launcher": processes.open_files(launcher),
                "children of a launcher": len(processes.children(launcher)),
                "mounts of a launcher": len(Path(f"/proc/{launcher}/mountinfo").read_text().splitlines()),
            }
    return found


async def nothing_is_left(server, before):
    """Waits until there is no more than before, except for the server's descriptors of a launcher that has been started since."""
    before = before + Counter({"descriptors of the server": MORE_DESCRIPTORS})
    until = time.monotonic() + LEFT_WITHIN_S
    while more := left(server) - before:
        assert time.monotonic() < until, f"more than before: {dict(more)} with {dict(before)}"
        await anyio.sleep(0.01)


class Group:
    """A control group of the machine for one controller, into which processes are moved for a while."""

    def __init__(self, controller):
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        kinds = {mount[4]: (mount[mount.index("-") + 1], mount[-1].split(",")) for mount in mounts}
        first = [place for place, (kind, options) in kinds.items() if kind == "cgroup" and controller in options]
        second = [place for place, (kind, _) in kinds.items() if kind == "cgroup2"]
        self.is_version_1 = bool(first)
        self.folder = Path((first or second)[0]) / f"isolator-test-{os.getpid()}"
        self.controller = controller

    def __enter__(self):
        if not self.is_version_1:
            (self.folder.parent / "cgroup.subtree_control").write_text(f"+{self.controller}")
        self.folder.mkdir()
        return self

    def __exit__(self, *_):
        until = time.monotonic() + LEFT_WITHIN_S
        while self.folder.exists():
            for pid in self.read("cgroup.procs").split():
                with suppress(OSError):
                    (self.folder.parent / "cgroup.procs").write_text(pid)
            try:
                self.folder.rmdir()
            except OSError:
                # A process that is ending is still in it.
                assert time.monotonic() < until, f"{self.folder} can't be removed"
                time.sleep(0.01)

    def read(self, name):
        return (self.folder / name).read_text()

    def write(self, name, value):
        (self.folder / name).write_text(str(value))

    def take(self, pids):
        for pid in pids:
            self.write("cgroup.procs", pid)


@contextmanager
def limited(pids, resource, limit):
    """Another limit of processes, while the block runs. `limit` is what a process may have, of what it has now."""
    before = {pid: prlimit(pid, resource) for pid in pids}
    for pid in pids:
        prlimit(pid, resource, (limit(pid), before[pid][1]))
    try:
        yield
    finally:
        for pid, values in before.items():
            # One may have ended because of it.
            with suppress(ProcessLookupError):
                prlimit(pid, resource, values)


def groups_of_version_2(instance):
    """The groups of an instance in the hierarchy of version 2, which also has the freezer where version 1 limits."""
    return [
        path.parent
        for path in Path("/sys/fs/cgroup").rglob("cgroup.max.descendants")
        if path.parent.name.startswith(f"{instance}+")
    ]
