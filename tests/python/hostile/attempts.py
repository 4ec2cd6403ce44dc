"""Sent with every hostile program in Python: how it tries what has no wrapper, and how it tells what came of it.

Numbers of system calls are those of x86_64 and aarch64; None where the machine has no such call.
"""

import ctypes
import errno
import json
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)

_NUMBERS = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "cachestat": (451, 451),
    "capset": (126, 91),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "execveat": (322, 281),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_mempolicy": (239, 236),
    "init_module": (175, 105),
    "io_setup": (206, 0),
    "io_submit": (209, 2),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "listmount": (458, 458),
    "lookup_dcookie": (212, 18),
    "lsm_list_modules": (461, 461),
    "mbind": (237, 235),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mknodat": (259, 33),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "seccomp": (317, 277),
    "set_mempolicy": (238, 237),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "statmount": (457, 457),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sync": (162, 81),
    "syslog": (103, 116),
    "timer_create": (222, 107),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "uselib": (134, None),
    "vfork": (58, None),
    "vhangup": (153, 58),
    "vmsplice": (278, 75),
}
_MACHINE = {"x86_64": 0, "aarch64": 1}[os.uname().machine]

NAMESPACES = {
    "time": 0x00000080,
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}

KIB, MIB = 1 << 10, 1 << 20


def raw(number, *arguments):
    """A system call by its number; integers are as wide as registers."""
    wide = [ctypes.c_long(it) if isinstance(it, int) else it for it in arguments]
    return checked(libc.syscall(ctypes.c_long(number), *wide))


def call(name, *arguments):
    """A system call by its name."""
    number = _NUMBERS[name][_MACHINE]
    if number is None:
        raise OSError(errno.ENOSYS, "not on this machine")
    return raw(number, *arguments)


def checked(result):
    """What the C library returned, or its error."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def attempt(action, *arguments, **more):
    """The name of the error that it ends with, or "allowed"."""
    try:
        action(*arguments, **more)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "allowed"


def tell(**answers):
    """The program's only output, for its expectation to be held against."""
    print(json.dumps(answers), flush=True)


def child(action, *arguments):
    """Forks, has the child do it, and returns its wait status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action(*arguments)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def background(action, *arguments, quiet=True):
    """Does it in a process that has a session of its own and, if quiet, none of the program's streams.

    Returns its number once it does.
    """
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            try:
                if quiet:
                    null = os.open("/dev/null", os.O_RDWR)
                    for stream in range(3):
                        os.dup2(null, stream)
                os.write(writer, b"%d" % os.getpid())
                os.close(writer)
                action(*arguments)
            finally:
                os._exit(0)
        os._exit(0)
    os.close(writer)
    os.wait()
    number = int(os.read(reader, 20))
    os.close(reader)
    return number


def write(path, text=b"x", flags=os.O_WRONLY):
    """Writes to something that is there."""
    file = os.open(path, flags)
    try:
        os.write(file, text)
    finally:
        os.close(file)


def openable(path, flags=os.O_WRONLY):
    """Opens it and no more, for what would do harm if it were allowed."""
    os.close(os.open(path, flags))


def runner():
    """The process that reports: the program's parent."""
    return os.getppid()


def end_of_the_program():
    """For who outlives this process: tells whether it has ended."""
    own = f"/proc/{os.getpid()}/stat"

    def has_ended():
        try:
            with open(own) as file:
                return file.read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    return has_ended
