"""Stops threads of a process until the standard input ends: `main`, or all `others`."""

import ctypes
import os
import sys

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
WALL = 0x40000000


def main(pid, which):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    for thread in map(int, os.listdir(f"/proc/{pid}/task")):
        if (thread == pid) == (which == "main"):
            for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
                if libc.ptrace(request, thread, 0, 0):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            os.waitpid(thread, WALL)
    print("stopped", flush=True)
    # They go on when this process ends.
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
