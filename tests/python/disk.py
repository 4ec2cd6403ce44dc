"""A disk in memory, which can be full at once and empty again."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path


class Disk:
    """The disk; who has its directory must be gone before it is closed."""

    def __init__(self, directory, size):
        self.directory = directory
        self.size = size
        directory.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={size},mode=0711", "isolator-faults", str(directory))
        # A disk of no size is one without a limit.
        (directory / "something").write_bytes(b"x")

    @contextmanager
    def full(self):
        """It has no space left."""
        self.fill()
        try:
            yield
        finally:
            self.empty()

    def fill(self):
        """Makes it as large as what is on it."""
        disk = os.statvfs(self.directory)
        self._resize((disk.f_blocks - disk.f_bfree) * disk.f_frsize)

    def empty(self):
        """Gives it back the space that it had."""
        self._resize(self.size)

    def _resize(self, size):
        _run("mount", "-o", f"remount,size={size}", str(self.directory))

    def close(self):
        """Takes it away, and whatever is mounted on it."""
        unmount_below(self.directory)


def unmount_below(directory):
    """Unmounts a directory and everything in it."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    # What was mounted last is on top.
    for mount in reversed(mounts):
        if mount == str(directory) or mount.startswith(f"{directory}/"):
            _run("umount", "--lazy", mount)


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
