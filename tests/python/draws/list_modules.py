"""Prints the modules of the image that can be imported ahead, as JSON: those of the standard library and all others, each with its
public submodules. Left out is what fails, prints, starts a thread, keeps a file open or makes memory that processes share."""

import importlib
import json
import os
import pkgutil
import signal
import sys

# These open a browser, print, or are a program of their own.
LEFT_OUT = {"antigravity", "this", "idlelib", "turtledemo", "test", "tests", "testing", "conftest", "__main__", "__hello__"}
LEFT_OUT |= {"__phello__", "_pyrepl", "encodings"}
LONGEST_S = 5


def traces():
    """What a module may leave in the process that a template must not have."""
    maps = [line.split()[1] for line in open("/proc/self/maps")]
    shared = sum(rights[3] == "s" and rights[1] == "w" for rights in maps)
    said = os.fstat(1).st_size
    return len(os.listdir("/proc/self/task")), sorted(os.listdir("/proc/self/fd")), said, shared


def is_imported(name):
    before = traces()
    signal.alarm(LONGEST_S)
    try:
        importlib.import_module(name)
    except BaseException:
        return False
    finally:
        signal.alarm(0)
    return traces() == before


def imported(tops):
    """The names that can be imported, of these and their public submodules."""
    found = []
    for top in sorted(set(tops) - LEFT_OUT):
        was_there = top in sys.modules
        if not is_imported(top):
            continue
        found += [] if was_there else [top]
        below = pkgutil.iter_modules(getattr(sys.modules[top], "__path__", []))
        names = sorted(it.name for it in below if not it.name.startswith("_") and it.name not in LEFT_OUT)
        # What others have imported comes with them.
        found += [name for name in (f"{top}.{name}" for name in names) if name not in sys.modules and is_imported(name)]
    return found


def stop(*_):
    raise TimeoutError


signal.signal(signal.SIGALRM, stop)
# They may print and warn, which is found by the length of this file.
answer = os.dup(1)
said = os.open("/tmp/said", os.O_CREAT | os.O_RDWR | os.O_APPEND)
os.dup2(said, 1)
os.dup2(said, 2)
os.close(said)

others = [it.name for it in pkgutil.iter_modules([path for path in sys.path if path.endswith("-packages")])]
found = {"standard": imported(sys.stdlib_module_names), "others": imported(others)}
os.write(answer, json.dumps(found).encode())
os._exit(0)
