"""What a hostile package tries while an image is built. Prints one line for each attempt.

usage: hostile_install.py SOCKET PORT SECRET DISK
"""

import ctypes
import os
import platform
import socket
import stat
import sys

SOCKET, PORT, SECRET, DISK = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
CLONE_NEWUSER = 0x10000000
# keyctl, bpf, finit_module
NUMBERS = {"x86_64": (250, 321, 313), "aarch64": (219, 280, 273)}[platform.machine()]

libc = ctypes.CDLL(None, use_errno=True)


def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")


def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.settimeout(5)
        one.connect(address)


def secret_by_processes():
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            open(f"/proc/{process}/root{SECRET}").close()
            return
        except OSError as error:
            last = error
    raise last


def users_of_the_host():
    if open("/proc/self/uid_map").read().split()[1] != "0":
        raise PermissionError


def disk():
    os.mknod("/disk", stat.S_IFBLK | 0o600, DISK)
    os.close(os.open("/disk", os.O_RDONLY))


ATTEMPTS = {
    "abstract socket": lambda: connect(socket.AF_UNIX, "\0" + SOCKET),
    "loopback": lambda: connect(socket.AF_INET, ("127.0.0.1", PORT)),
    "loopback by the gateway": lambda: connect(socket.AF_INET, ("10.0.2.2", PORT)),
    "loopback by the name server": lambda: connect(socket.AF_INET, ("10.0.2.3", PORT)),
    "secret by processes": secret_by_processes,
    "secret by its path": lambda: open(SECRET).close(),
    "users of the host": users_of_the_host,
    "disk": disk,
    "long file": lambda: os.truncate(os.open("/long", os.O_WRONLY | os.O_CREAT), 5 << 30),
    "mode of a device": lambda: os.chmod("/dev/null", 0o666),
    "mount": lambda: check(libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)),
    "chroot": lambda: os.chroot("/mnt"),
    "unshare": lambda: check(libc.unshare(CLONE_NEWUSER)),
    "keyctl": lambda: check(libc.syscall(NUMBERS[0], 0, -3, 1)),
    "bpf": lambda: check(libc.syscall(NUMBERS[1], 0, 0, 0)),
    "module": lambda: check(libc.syscall(NUMBERS[2], 0, b"", 0)),
}

for name, attempt in ATTEMPTS.items():
    try:
        attempt()
        print(f"{name}: done")
    except OSError as error:
        print(f"{name}: {type(error).__name__}")
