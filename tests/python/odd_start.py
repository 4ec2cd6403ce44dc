"""Starts a command in an odd way: with blocked and ignored signals, odd limits and priorities, an odd umask, and an open file.

The first argument says how: "plain", "odd", or "bounded", which is odd without the right to raise a limit again.
"""

import ctypes
import os
import resource
import signal
import sys

NICE = 5
# Every limit that the kernel has.
LIMITS = {
    "AS": 1 << 40,
    "CORE": 0,
    "CPU": 500,
    "DATA": 1 << 40,
    "FSIZE": 64 << 20,
    "LOCKS": 100,
    "MEMLOCK": 16 << 10,
    "MSGQUEUE": 4096,
    "NICE": 25,
    "NOFILE": 512,
    "NPROC": 40_000,
    "RSS": 1 << 40,
    "RTPRIO": 50,
    "RTTIME": 10_000_000,
    "SIGPENDING": 200,
    "STACK": 1 << 20,
}
# Python has no name for it.
LOCKS = 10
# A file that stays open, and its descriptor.
OPEN = __file__
OPEN_AS = 99
ADDR_NO_RANDOMIZE = 0x0040000
PR_CAPBSET_DROP, PR_SET_TIMERSLACK, PR_SET_THP_DISABLE = 24, 29, 41
CAP_SYS_RESOURCE = 24
IGNORED = [signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGALRM, signal.SIGTERM, signal.SIGCHLD]


def can_raise():
    """Whether a hard limit can be raised again. Some containers have no root that can."""
    with open("/proc/self/status") as status:
        (capabilities,) = (line.split()[1] for line in status if line.startswith("CapEff:"))
    return bool(int(capabilities, 16) & 1 << CAP_SYS_RESOURCE)


def main(how, command):
    libc = ctypes.CDLL(None, use_errno=True)
    if how != "plain":
        os.umask(0o177)
        for name, limit in LIMITS.items():
            number = getattr(resource, f"RLIMIT_{name}", LOCKS)
            most = resource.getrlimit(number)[1]
            if not can_raise() and most != resource.RLIM_INFINITY:
                limit = min(limit, most)
            resource.setrlimit(number, (limit, limit if how == "bounded" or can_raise() else most))
        os.nice(NICE)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
        os.dup2(os.open(OPEN, os.O_RDONLY), OPEN_AS)
        libc.personality(ADDR_NO_RANDOMIZE)
        libc.prctl(PR_SET_TIMERSLACK, 1_000_000, 0, 0, 0)
        libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("800")
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    if how == "bounded":
        libc.prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
