"""Starts the kernel of a Python session: the program that runs a client's cells, one after the other.

It is started as ``python3 kernel.py CHANNEL``. The number is that of a Unix stream socket to the runner. A message is one byte
of kind, four bytes of length and what belongs to the kind; `cells.py` has the kinds.

Opening a session takes a few milliseconds, and loading the kernel would take most of them. So this file makes the interpreter
look like one that was started without a program, says that it is ready, and loads the rest while nothing is asked of it. A template
for sessions has loaded everything with `prepare`, and its forks begin with `start`.

The other files of this folder are no modules. Each gets a namespace with a copy of the builtins, so a cell that redefines `len` or
`print` breaks only what the client runs.
"""

import builtins
import os
import sys

import _socket
from _signal import SIG_BLOCK, SIGINT, pthread_sigmask


def _new_main():
    """Returns the module in which cells run."""
    main = type(sys)("__main__")
    main.__builtins__ = builtins
    return main


def _look_like_a_prompt(main):
    """Removes the traces of a program, and puts the module in which cells run in its place."""
    here = os.path.dirname(__file__)
    for place in [here, __file__]:
        # Python has looked whether this file is an archive.
        sys.path_importer_cache.pop(place, None)
    # An interpreter that waited knows no program, so it has no path of the program's modules yet.
    if sys.path and sys.path[0] == here:
        sys.path[0] = ""
    elif not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, "")
    sys.argv[:] = [""]
    if hasattr(sys, "orig_argv"):
        del sys.orig_argv[1:]
    for name in [name for name in os.environ if name.startswith("ISOLATOR_")]:
        del os.environ[name]
    sys.modules["__main__"] = main


def _loader(folder, private):
    """Returns a function that loads a file of the kernel once, and returns its namespace."""
    loaded, library = {}, None

    def load(name, open=open, compile=compile, exec=exec):
        nonlocal library
        if name not in loaded:
            if library is None and name != "imports":
                library = load("imports")["library"]
            path = "%s/%s.py" % (folder, name)
            with open(path, "rb") as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
            space = {"__builtins__": private, "__name__": name, "load": load, "library": library, "folder": folder}
            exec(code, space)
            loaded[name] = space
        return loaded[name]

    return load


def prepare(modules):
    """Loads all of the kernel, and imports what it needs, before it has a channel and the files of a session. `modules` are those that
    were imported before, by name."""
    main = _new_main()
    _prepared.append((main, _load("cells")["prepare"](main, modules)))


def start():
    """Runs a session on the channel with the number that is the argument. Never returns."""
    number = int(sys.argv[1])
    os.set_inheritable(number, False)
    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, number)
    main, session = _prepared.pop() if _prepared else (_new_main(), None)
    _look_like_a_prompt(main)
    # From now on, the runner may interrupt what keeps a cell from beginning.
    pthread_sigmask(SIG_BLOCK, {SIGINT})
    version = ("%d.%d.%d" % sys.version_info[:3]).encode()
    channel.sendall(b"r" + len(version).to_bytes(4, "big") + version)
    _load("cells")["serve"](channel, main, session)


_load, _prepared = _loader(os.path.dirname(os.path.abspath(__file__)), dict(vars(builtins))), []
if __name__ == "__main__":
    start()
