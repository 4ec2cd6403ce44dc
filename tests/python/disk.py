"""A disk in memory, which can be full at once and empty again."""

import errno
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

# What others may write while the disk is made smaller; a file takes it afterwards.
ROOM = 16 << 20
# Others may write more than that. Then it is made smaller again.
ATTEMPTS = 10


class Disk:
    """The disk; who has its directory must be gone before it is closed."""

    def __init__(self, directory, size):
        self.directory = directory
        self.size = size
        self._filler = directory / "filler"
        directory.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={size},mode=0711", "isolator-faults", str(directory))

    @contextmanager
    def full(self):
        """It has no space left."""
        self._shrink()
        self.fill()
        try:
            yield
        finally:
            self.empty()

    def fill(self):
        """Writes into a file until there is no space left, even if other processes write or remove files meanwhile."""
        with self._filler.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
            except OSError as error:
                assert error.errno == errno.ENOSPC, error

    def empty(self):
        """Gives it back the space that it had."""
        self._filler.unlink(missing_ok=True)
        _run("mount", "-o", f"remount,size={self.size}", str(self.directory))

    def _shrink(self):
        """Makes it little larger than what is on it, because a file on a disk in memory takes memory."""
        for _ in range(ATTEMPTS):
            disk = os.statvfs(self.directory)
            size = min((disk.f_blocks - disk.f_bfree) * disk.f_frsize + ROOM, self.size)
            command = ["mount", "-o", f"remount,size={size}", str(self.directory)]
            if subprocess.run(command, capture_output=True).returncode == 0:
                return
        raise AssertionError(f"{self.directory} could not be made smaller")

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
