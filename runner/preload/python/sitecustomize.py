"""Parks a Python that was started ahead of its program.

Python imports a module of this name by itself before it looks for the program. This one stands in
front of the image's own: it imports what was asked for, tells the runner that it is ready, and waits.
Then it takes back everything by which it could be noticed and returns, and Python goes on with the
program exactly as in any other start. So nothing of the way in which Python runs a program, reports its
errors, or ends, is done again here.

What the runner says in ISOLATOR_PRELOAD: the descriptor to talk on, a colon, the modules with commas.
What is said there: ``ready`` and the modules that the image does not have, in one line; then the runner sends
``go`` and the program's arguments, each ended by a NUL, and shuts its side. The descriptor is closed in
silence if the program can run, or a word is said if it needs a plain start.
"""

import sys


def _take_back_the_way_in():
    import os

    here = os.path.dirname(__file__)
    sys.path.remove(here)
    sys.path_importer_cache.pop(here, None)
    rest = os.environ.pop("PYTHONPATH").partition(os.pathsep)[2]
    if rest:
        os.environ["PYTHONPATH"] = rest


def _import_the_images_own():
    """Returns whether there is one. Both have the same name, and only the image's remains."""
    del sys.modules[__name__]
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
        return False
    return True


def _preload(names):
    """Imports the modules and returns the names of those that are not there."""
    missing = []
    for name in names:
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            if not (name + ".").startswith(error.name + "."):
                raise
            missing.append(name)
    return missing


def _leave_to_the_kernel(preloaded):
    """Taking thousands of preloaded objects apart one by one takes longer than most programs run, and
    the kernel frees them at one stroke. The program's own objects end as always."""
    import gc

    mine = {}
    for name, module in preloaded.items():
        if sys.modules.get(name) is module:
            mine[name] = sys.modules.pop(name)
    # A frozen cycle is never collected.
    mine[""] = mine
    gc.freeze()


def _is_shadowed(names):
    """Whether the program would import something else under one of the names."""
    import os

    places = [os.path.dirname(sys.argv[0]) or "."]
    places += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    tops = {name.partition(".")[0] for name in names}
    for place in places:
        if os.path.isdir(place) and not tops.isdisjoint(
            file.partition(".")[0] for file in os.listdir(place)
        ):
            return True
    return False


def _park():
    import os

    plain = set(sys.modules)
    import atexit
    import gc

    channel, _, names = os.environ.pop("ISOLATOR_PRELOAD").partition(":")
    channel = int(channel)
    names = [name for name in names.split(",") if name]

    preloaded = {}
    if names:
        # What is registered first runs last.
        atexit.register(_leave_to_the_kernel, preloaded)
    missing = _preload(names)
    for name in ("atexit", "gc"):
        if name not in plain and not names:
            del sys.modules[name]
    preloaded.update((name, sys.modules[name]) for name in set(sys.modules) - plain)
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("a module started threads, which a program would notice when it forks")
    gc.collect()
    gc.freeze()

    os.write(channel, (" ".join(["ready"] + missing) + "\n").encode())
    arguments = b"".join(iter(lambda: os.read(channel, 65536), b"")).split(b"\0")[:-1]
    if not arguments:
        # The runner has ended.
        os._exit(0)
    if _is_shadowed(preloaded):
        os.write(channel, b"shadowed\n")
        os._exit(0)
    os.close(channel)
    arguments = [os.fsdecode(argument) for argument in arguments[1:]]
    sys.argv.extend(arguments)
    if hasattr(sys, "orig_argv"):
        sys.orig_argv.extend(arguments)


_take_back_the_way_in()
_is_there = _import_the_images_own()
_park()
if not _is_there:
    # What Python expects where there is no such module.
    raise ModuleNotFoundError("No module named %r" % __name__, name=__name__)
