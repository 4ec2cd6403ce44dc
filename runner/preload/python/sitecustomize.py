"""Stops a preloaded Python until its program comes.

Python imports a module of this name by itself before it looks for the program. This one stands in
front of the image's own: it imports what was asked for, tells the runner that it is ready, and waits.
Then it takes back everything by which it could be noticed and returns, and Python goes on with the
program exactly as in any other start. So nothing of the way in which Python runs a program, reports its
errors, or ends, is done again here.

ISOLATOR_PRELOAD, set by the runner, has the number of the channel's descriptor, a colon, and the modules,
separated by commas. ``a:b`` stands for ``from a import b``. On the channel, this module sends ``ready`` and the modules that the image does not have, in one line; then the runner sends
``go`` and the program's arguments, each ended by a NUL, and shuts its side. The answer is ``.`` if the program
can run here; anything else, and an end without an answer, means that it needs a plain start. For a session the runner sends ``session``
and the path of the kernel, each ended by a NUL, and the channel stays open: it is the kernel's. If the program has a set of
packages, ``packages`` and its folder come first, each ended by a NUL.

A template has the server on its standard input, and the number of that is its channel. It sends four lines: ``ready``, the CPU
time of its start in nanoseconds, and its version; the imports, each as its name, ``=`` and its CPU time, with ``!`` for the standard library, and
without a time if it is missing; the folders in which modules are, and the ends of their files; the names of all modules. Then it is forked, into one sandbox after the other, and each fork
goes on as above, with a channel of its own. A copy of it can become the template for sessions, which has the kernel, and all that the
kernel imports. It says the same lines, and its forks serve only sessions.
"""

import sys

_TEMPLATE = "/.isolator/preload/template.so"
# The channel's number in the forks of a template.
_FORKED_CHANNEL = 60
_LONGEST_REPORT = 60000
_KERNEL = "/.isolator/session/kernel.py"
# Where a set can be, which depends on the engine.
_PACKAGES = ("/.isolator/packages/", "/dev/shm/.isolator-packages/")
_USER_BASE = "PYTHONUSERBASE"
# Limits of the files that modules may write when they are imported, in bytes and entries.
_MOST_WRITTEN = 4 << 20
_MOST_ENTRIES = 1000


def _take_back_the_way_in():
    """Returns what the runner says; None in another interpreter of a program's process, for which
    Python goes the same way again."""
    import os

    here = os.path.dirname(__file__)
    sys.path.remove(here)
    sys.path_importer_cache.pop(here, None)
    said = os.environ.pop("ISOLATOR_PRELOAD", None)
    if said is not None:
        rest = os.environ["PYTHONPATH"].partition(os.pathsep)[2]
        if rest:
            os.environ["PYTHONPATH"] = rest
        else:
            del os.environ["PYTHONPATH"]
        if os.environ.get("LD_BIND_NOW") == "isolator":
            del os.environ["LD_BIND_NOW"]
    return said


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
    """Imports the modules. Returns the CPU time of each in nanoseconds, None for those that are not there."""
    from time import process_time_ns

    times = {}
    for name in names:
        began = process_time_ns()
        module, _, part = name.partition(":")
        try:
            __import__(module, fromlist=[part] if part else ())
        except ModuleNotFoundError as error:
            if not (module + ".").startswith(error.name + "."):
                raise
            times[name] = None
        else:
            times[name] = process_time_ns() - began
    return times


def _arrange_the_end(preloaded, leaves):
    """Taking thousands of objects apart one by one takes longer than most programs run, and the kernel
    frees them at one stroke. So they are left to it, unless there are any whose end can be noticed. In a fork ``leaves`` has
    a function that never returns, and leaves out the rest of the end. Its argument says whether there is much memory to be freed.
    Returns a function to call when everything is as the program will find it."""
    import atexit
    import gc
    from io import BufferedReader, BytesIO, FileIO, StringIO
    from itertools import chain, starmap

    from _io import _IOBase
    from _weakref import ref

    # The program may have changed anything by then, and none of its code must be called.
    modules, objects, stats, freeze, unfreeze = sys.modules, gc.get_objects, gc.get_stats, gc.freeze, gc.unfreeze
    bases_of, names_of = type.__dict__["__mro__"].__get__, type.__dict__["__dict__"].__get__
    module_type, builtin, function, method, generator = type(sys), type(len), type(_load), type(_load.__get__(0)), type(_ for _ in ())
    library = sys.prefix + "/", *_PACKAGES
    collections, known = [], {}
    text, streams = type(sys.stdout), vars(sys)
    flush, first_streams = text.flush, [ref(sys.stdout), ref(sys.stderr)]

    def count():
        collections[:] = [generation["collections"] for generation in stats()[1:]]
        known.update((name, modules[name]) for name in set(modules) - {"sys", "builtins", "__main__"})

    def is_of_a_library(call, type=type):
        if type(call) is method:
            call = call.__func__
        if type(call) is function:
            return call.__code__.co_filename.startswith(library)
        if type(call) is builtin:
            # Libraries name what changes a collection of theirs, and programs `print` or what writes to a stream.
            return type(call.__self__) is not module_type and _IOBase not in bases_of(type(call.__self__))
        return call is None

    def is_noticed(thing, type=type, str=str, next=next):
        """Whether the end of a thing that has a say in it may do more than free what a library holds."""
        kind = type(thing)
        if kind is BytesIO or kind is StringIO:
            return False
        if kind is BufferedReader or kind is FileIO:
            # Python can warn of files that were left open.
            return type(thing.name) is not str or not thing.name.startswith(library)
        if kind is generator:
            return not thing.gi_code.co_filename.startswith(library)
        if ref in bases_of(kind):
            # The callback of a WeakMethod belongs to its module, and calls one that the program may have given.
            is_indirect = "_func_ref" in names_of(kind) and thing.__callback__ is not None
            return not is_of_a_library(thing._func_ref() if is_indirect else thing.__callback__)
        ends = (names_of(base).get("__del__") for base in bases_of(kind))
        end = next(end for end in ends if end is not None)
        # Many libraries have one of these and never use it.
        is_tracker = type(end) is function and end.__qualname__ == "ResourceTracker.__del__"
        return not is_tracker or thing._pid is not None

    def leave(frame=sys._getframe, type=type, map=map, set=set, any=any):
        if frame().f_back is not None:
            # The program calls its exit functions and may do more.
            return
        if preloaded:
            things = objects()
        elif collections == [generation["collections"] for generation in stats()[1:]]:
            # The objects from before the program are in the oldest generation now.
            things = objects(0) + objects(1)
        else:
            return
        kinds = {
            kind
            for kind in set(map(type, things))
            if any(base is ref or "__del__" in names_of(base) for base in bases_of(kind))
        }
        things = [thing for thing in things if type(thing) in kinds] if kinds else ()
        if any(is_noticed(thing) for thing in things):
            # It may be in the hands of one that would have no end.
            unfreeze()
            return
        # The program may have put others in place of the first ones and left something in those.
        written = [streams.get("stdout"), streams.get("stderr"), *[stream() for stream in first_streams]]
        is_alone = not any(name in modules for name in ["_interpreters", "_xxsubinterpreters"])
        if leaves and is_alone and all(type(stream) is text for stream in written):
            try:
                for stream in written:
                    if not stream.closed:
                        flush(stream)
                leaves[0](bool(preloaded))
            except (OSError, ValueError, SystemError):
                # Python tries again, and reports it. What is below a stream may be the program's, and have done anything.
                unfreeze()
                return
        freeze()
        for name, module in known.items():
            if modules.get(name) is module:
                del modules[name]
        # A frozen cycle is never collected.
        known[""] = known

    # The first registered function runs last. A program that traces calls does not see it.
    steps = (sys.gettrace, sys.getprofile, leave)
    atexit.register(any, chain(*[starmap(step, [()]) for step in steps]))
    return count


def _load(names, leaves, drawn, chosen):
    """Imports the modules and makes them known to the end. In a template ``drawn`` gets what its forks must draw again, and ``chosen``
    the generators whose seeds were chosen. Returns the packages of the modules that were imported, and the times."""
    plain = set(sys.modules)
    import gc

    preloaded = {}
    count = _arrange_the_end(preloaded, leaves)
    end_watch = _watch_seeds(chosen) if names and drawn is not None else None
    times = _preload(names)
    if end_watch:
        end_watch()
        drawn += _find_drawn(chosen)
    if names:
        preloaded.update((name, sys.modules[name]) for name in set(sys.modules) - plain)
    else:
        for name in set(sys.modules) - plain:
            del sys.modules[name]
    packages = _packages_of(preloaded)
    if drawn is None:
        _look_for_an_archive()
    else:
        for _ in range(_REHEARSALS):
            _rehearse(packages)
    gc.collect()
    if names:
        # No collection looks at what is there now. It must look at the program's variables, though: a
        # module ends when its variables and the functions that see them are found to be garbage.
        gc.freeze()
        main = type(sys)("__main__")
        vars(main).update(vars(sys.modules["__main__"]))
        sys.modules["__main__"] = main
    count()
    return packages, times


def _look_for_an_archive():
    """Python looks whether its program is an archive. The first look of all takes longest."""
    import zipimport

    try:
        zipimport.zipimporter(__file__)
    except zipimport.ZipImportError:
        pass


def _would_differ(preloaded):
    """Whether something among the files of the request would have changed what was done ahead. ``preloaded`` are the packages of the
    modules that were imported."""
    import os

    # Python looks for these directories only once.
    site = sys.modules.get("site")
    if site and site.ENABLE_USER_SITE and site.USER_SITE not in sys.path and os.path.isdir(site.USER_SITE):
        return True
    for place in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if _has_one_of(_packages_of({"sitecustomize", *sys.modules}), [os.listdir(place)] if os.path.isdir(place) else []):
            return True
        sys.path_importer_cache.pop(os.path.abspath(place), None)
    # The program may look for modules in any of its folders.
    return bool(preloaded) and _has_one_of(
        preloaded, (folders + files for _, folders, files in os.walk("."))
    )


def _use_packages(folder):
    """Lets Python find a set of packages, as in a plain start with its folder as the user base. Returns whether everything is then as
    it would be there."""
    import os

    if os.environ.get(_USER_BASE) == folder:
        # A fork of a template that has the set.
        return True
    # A plain start has its variables in this order.
    own = {_USER_BASE: folder}
    if os.environ.get("PATH"):
        path, place = os.environ["PATH"], ":%s/bin" % folder
        own["PATH"] = path if path.endswith(place) else path + place
    own = {os.fsencode(name): os.fsencode(value) for name, value in own.items()}
    variables = sorted({**os.environb, **own}.items())
    os.environ.clear()
    os.environb.update(variables)
    site = sys.modules.get("site")
    if not (site and site.ENABLE_USER_SITE):
        return True
    if site.USER_SITE in sys.path or sys.prefix != sys.base_prefix:
        return False
    site.USER_BASE = site.USER_SITE = None
    place = site.getusersitepackages()
    if not os.path.isdir(place):
        return True
    # Modules that are there already were not looked for in the set. The standard library comes first in any case.
    standard = getattr(sys, "stdlib_module_names", ())
    if _has_one_of(_packages_of({"sitecustomize", *sys.modules}.difference(standard)), [os.listdir(place)]):
        return False
    # It has its place behind the standard library, and before what the image has.
    images_own = site.getsitepackages()
    at = next((at for at, entry in enumerate(sys.path) if entry in images_own), len(sys.path))
    behind = sys.path[at:]
    del sys.path[at:]
    known = site.addsitedir(place, site.removeduppaths())
    for entry in behind:
        path = site.makepath(entry)[1]
        if path not in known:
            sys.path.append(entry)
            known.add(path)
    return True


def _packages_of(modules):
    """To look at all their names takes long in a fork: each is written to when it is looked at."""
    return {name.partition(".")[0] for name in modules}


def _has_one_of(packages, listings):
    return any(not packages.isdisjoint(file.partition(".")[0] for file in files) for files in listings)


def _start_clocks():
    """The records of logging say how long it has been there."""
    logging = sys.modules.get("logging")
    if logging:
        import time

        is_whole = type(getattr(logging, "_startTime", None)) is int
        logging._startTime = time.time_ns() if is_whole else time.time()


def _call_template(name):
    """Calls a part of the template's library, by an import that never succeeds."""
    import _imp

    try:
        _imp.create_dynamic(type(sys.implementation)(name="isolator_" + name, origin=_TEMPLATE))
    except SystemError:
        pass


def _wait_to_be_forked(leaves, drawn, template="template"):
    """Returns in each fork, and never in the template. Returns whether a program waits for this fork; None in a copy that is to become
    the template for sessions."""
    import os

    here = os.getcwd()
    _call_template(template)
    is_awaited = vars(sys).pop("_isolator_is_awaited", None)
    if is_awaited is None:
        return None
    leaves.append(vars(sys).pop("_isolator_leave"))
    os.chdir(here)
    for draw, thing in drawn:
        draw(thing)
    return is_awaited


# Python adapts its bytecode to what that has met a few times.
_REHEARSALS = 16

# Most programs do these things. Nothing here is left in a cycle.
_REHEARSAL = """
import os, sys
def fields(line, *more, sep=","):
    return [field.strip().lower() for field in line.split(sep)]
try:
    table = {str(number): number ** 2 for number in range(20)}
    total = sum(table.values(), 0) / len(table)
    rest = sorted({*fields("b, a, c")}, key=len)[::-1]
    while total > 1 and rest:
        total, _ = divmod(total, 2)
    with open(os.devnull) as file:
        text = file.read() + "%d %s" % (total, rest[0])
    {}[text]
except KeyError as error:
    print(f"{error!r:>20}", type(error).__name__, "\\u00e9", file=out, flush=True)
"""


def _rehearse(preloaded):
    """Runs a small program. A fork shares its memory with the template until it writes there, and each page that it writes is
    copied first, which would take longer than the program if it waited until then. In the template, this prepares what a process does
    only once: bytecode and the calls of libraries find their targets when they first run."""
    from io import BytesIO, TextIOWrapper

    _would_differ(preloaded)
    try:
        # Python will look for its `usercustomize`.
        __import__("isolator_rehearsal")
    except ModuleNotFoundError:
        pass
    _look_for_an_archive()
    variables = {"__name__": "__main__", "out": TextIOWrapper(BytesIO(), encoding="utf-8", write_through=True)}
    exec(compile(_REHEARSAL, "main.py", "exec"), variables)
    variables.clear()


def _written():
    """The content of the folders that can be written: for each path None for a folder, the target of a link in a tuple, or
    the content of the file, with its mode."""
    import os

    found, size = {}, 0
    for place in ["/tmp", "/dev/shm", os.getcwd()]:
        for folder, folders, files in os.walk(place):
            for path in [os.path.join(folder, name) for name in folders + files]:
                mode = os.lstat(path).st_mode
                if os.path.islink(path):
                    found[path] = (os.readlink(path),), mode
                elif os.path.isdir(path):
                    found[path] = None, mode
                elif os.path.isfile(path):
                    with open(path, "rb") as file:
                        found[path] = file.read(_MOST_WRITTEN + 1), mode
                    size += len(found[path][0])
                else:
                    raise RuntimeError("a module made %s, which is no file" % path)
                if size > _MOST_WRITTEN or len(found) > _MOST_ENTRIES:
                    raise RuntimeError("the modules wrote too many files")
    return found


def _write_again(written):
    """Writes the files of the modules into the sandbox that this process is in now."""
    import os

    for path, (content, mode) in written.items():
        if os.path.lexists(path):
            continue
        if content is None:
            os.mkdir(path)
        elif type(content) is tuple:
            os.symlink(*content, path)
            continue
        else:
            with open(path, "xb") as file:
                file.write(content)
        os.chmod(path, mode & 0o7777)


def _watch_seeds(chosen):
    """Notes each object of ``random.Random`` whose seed a module chooses: a new interpreter has the same numbers. Returns a
    function that ends this and leaves no trace."""
    undo = []

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name != "random":
                return None
            sys.meta_path.remove(self)
            found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
            spec = next((spec for spec in found if spec), None)
            if spec:
                loader, execute = spec.loader, spec.loader.exec_module
                loader.exec_module = lambda module: (execute(module), watch(module.Random), vars(loader).pop("exec_module"))
            return spec

    def watch(kind):
        plain = kind.seed

        def seed(self, a=None, version=2):
            chosen.pop(id(self), None)
            if a is not None:
                chosen[id(self)] = self
            return plain(self, a, version)

        kind.seed = seed
        undo.append(lambda: setattr(kind, "seed", plain))

    def end():
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for step in undo:
            step()

    finder = Finder()
    sys.meta_path.insert(0, finder)
    return end


# Objects of which the referents are looked at together.
_OBJECTS_AT_ONCE = 1000
# A seed that numpy draws by itself has 128 bits. One below this was chosen by a module.
_LEAST_DRAWN = 1 << 64


def _find_drawn(chosen):
    """Returns what modules have drawn from the system, once for each process, as pairs of a function that draws it again and
    its argument: the states of generators of random numbers, wherever they are, and a few numbers."""
    import gc
    import os

    random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    kinds = [random.Random.__base__] if random else []
    if numpy:
        kinds += [numpy.SeedSequence, numpy.BitGenerator, numpy.RandomState]
    kinds, things = tuple(kinds), {}
    # Those that the collector does not know are held by something that it knows. All of them at once would take memory that the
    # template keeps, and that each fork copies.
    tracked = gc.get_objects()
    for start in range(0, len(tracked), _OBJECTS_AT_ONCE):
        some = tracked[start : start + _OBJECTS_AT_ONCE]
        things.update((id(thing), thing) for thing in some + gc.get_referents(*some) if issubclass(type(thing), kinds))

    def all_of(kind):
        return [thing for thing in things.values() if issubclass(type(thing), kind)]

    drawn = []
    if random:
        system, generator = random.SystemRandom, random.Random
        theirs = (thing for thing in all_of(generator.__base__) if id(thing) not in chosen)
        for thing in theirs:
            kind = generator if issubclass(type(thing), generator) else generator.__base__
            if not issubclass(type(thing), system):
                drawn.append((kind.seed, thing))
    if numpy:
        sequences = [it for it in all_of(numpy.SeedSequence) if type(it.entropy) is int and it.entropy >= _LEAST_DRAWN]
        # It has a public name since numpy 1.25.
        seeds = [(it, getattr(it, "seed_seq", None) or getattr(it, "_seed_seq", None)) for it in all_of(numpy.BitGenerator)]
        bits = [it for it, seed in seeds if any(seed is sequence for sequence in sequences)]
        legacy = [it for it in all_of(numpy.RandomState) if any(it._bit_generator is one for one in bits)]
        drawn += [(type(thing).__init__, thing) for thing in sequences + bits]
        drawn += [(_forget_a_number, thing) for thing in legacy]
    symbol = sys.modules.get("sympy.core.symbol")
    if symbol:
        drawn.append((_draw_dummies, symbol.Dummy))
    process = sys.modules.get("multiprocessing.process")
    if process:
        drawn.append((lambda process: setattr(process.current_process(), "authkey", os.urandom(32)), process))
    return drawn


def _forget_a_number(legacy):
    """Normal numbers come in pairs, and a RandomState has the second in store."""
    legacy.set_state(dict(legacy.get_state(legacy=False), has_gauss=0, gauss=0.0))


def _draw_dummies(dummy):
    dummy._base_dummy_index = dummy._prng.randint(10**6, 9 * 10**6)


def _report(started, times):
    """The report of a template that is ready."""
    import _imp

    standard = getattr(sys, "stdlib_module_names", ())

    def words(name, time):
        mark = "!" if name.partition(":")[0].partition(".")[0] in standard else ""
        return name + "=" + ("" if time is None else str(time) + mark)

    imports = " ".join(words(*item) for item in times.items())
    places = [place for place in sys.path if place.startswith("/") and not place.split()[1:]]
    places = " ".join(places + [".py", ".pyc"] + _imp.extension_suffixes())
    loaded = " ".join(name for name in sys.modules if " " not in name)
    # The server reads no more than this, and does without the rest.
    version = "%d.%d.%d" % sys.version_info[:3]
    return ("ready %d %s\n%s\n%s\n%s" % (started, version, imports, places, loaded))[:_LONGEST_REPORT]


def _park(said):
    import os
    from time import process_time_ns

    started = process_time_ns()
    channel, _, names = said.partition(":")
    channel = int(channel)
    names, leaves, chosen, prepared = [name for name in names.split(",") if name], [], {}, None
    drawn = [] if channel == 0 else None
    try:
        preloaded, times = _load(names, leaves, drawn, chosen)
        if len(os.listdir("/proc/self/task")) > 1:
            raise RuntimeError("a module started threads, which a program would notice when it forks")
        if channel == 0:
            # Output of modules must not stay in a buffer: each fork would print it.
            for stream in [sys.stdout, sys.stderr]:
                stream.flush()
            _call_template("loads")
        written = _written() if channel == 0 else {}
        # A copy that made it would write to each of them, in memory that it shares with this one.
        modules = dict(sys.modules) if channel == 0 else None
        # That takes some milliseconds, for which the client that opens a session would wait.
        with open(_KERNEL, encoding="utf-8") as file:
            kernel = compile(file.read(), _KERNEL, "exec")
    except BaseException as error:
        # Python would print the error, go on, and end with another error about the program that is not there yet.
        os.write(2, ("%s: %s\n" % (type(error).__name__, error)).encode(errors="backslashreplace"))
        os._exit(1)

    missing = [name for name, time in times.items() if time is None]
    ready = (" ".join(["ready"] + missing) + "\n").encode()
    if channel == 0:
        os.write(channel, _report(started, times).encode(errors="backslashreplace"))
        channel = _FORKED_CHANNEL
        try:
            is_awaited = _wait_to_be_forked(leaves, drawn)
            if is_awaited is None:
                prepared = _prepare_kernel(kernel, modules, preloaded, drawn, chosen)
                written = _written()
                os.write(0, _report(started, times).encode(errors="backslashreplace"))
                is_awaited = _wait_to_be_forked(leaves, drawn, "copied_template")
            # To free them, their pages would have to be copied.
            leaves.append((kernel, list(_running_code())))
            _write_again(written)
            if not is_awaited:
                _rehearse(preloaded)
        except BaseException as error:
            # The runner sees that this is gone, and the server what it has printed if it was to be a template.
            os.write(2, ("%s: %s\n" % (type(error).__name__, error)).encode(errors="backslashreplace"))
            os._exit(1)
    os.write(channel, ready)
    try:
        arguments = _receive(channel)
        is_same = True
        if arguments[:1] == [b"packages"]:
            is_same = _use_packages(os.fsdecode(arguments[1]))
            del arguments[:2]
        # Without a word the runner has ended.
        if not arguments or not is_same or _would_differ(preloaded):
            os._exit(0)
        is_session = arguments[0] == b"session"
        arguments = [os.fsdecode(argument) for argument in arguments[1:]]
        if is_session:
            _become_kernel(kernel, channel, prepared)
        if prepared:
            # A program would find the kernel's modules.
            os._exit(0)
        sys.argv.extend(arguments)
        if hasattr(sys, "orig_argv"):
            sys.orig_argv.extend(arguments)
        _start_clocks()
        os.write(channel, b".")
        os.close(channel)
    except BaseException:
        # Python would complain, and go on to the program, which is started plainly meanwhile.
        os._exit(1)


def _running_code():
    """The code that runs now, of all callers."""
    frame = sys._getframe()
    while frame:
        yield frame.f_code
        frame = frame.f_back


def _receive(channel):
    """Reads until the runner has shut its side, or the message for a session is complete."""
    import os

    said, words = b"", []
    while True:
        more = os.read(channel, 65536)
        said += more
        words = said.split(b"\0")[:-1]
        rest = words[2:] if words[:1] == [b"packages"] else words
        if not more or (rest[:1] == [b"session"] and len(rest) == 2):
            return words


def _prepare_kernel(kernel, modules, preloaded, drawn, chosen):
    """Loads the kernel of sessions, with what it imports, in a copy of a template that has these modules. Returns its namespace.
    ``preloaded`` and ``drawn`` get more."""
    import gc

    plain = set(sys.modules)
    for stream in [sys.stdout, sys.stderr]:
        stream.flush()
    prepared = {"__name__": "kernel", "__file__": _KERNEL, "__builtins__": __builtins__}
    _end_of_start()
    exec(kernel, prepared)
    prepared["prepare"](modules)
    preloaded |= _packages_of(set(sys.modules) - plain)
    # The collector has none of the things from before.
    drawn += _find_drawn(chosen)
    gc.collect()
    gc.freeze()
    return prepared


def _end_of_start():
    """Python does not get to its program in a session, so ``site`` and the image's own module of this name count as loaded from here on:
    threads that import them would wait for ever."""
    for name in ["site", __name__]:
        if name in sys.modules:
            sys.modules[name].__spec__._initializing = False


def _become_kernel(kernel, channel, prepared):
    """Runs the kernel of a session, which may be prepared. It never returns."""
    import os

    _end_of_start()
    sys.argv[:] = [_KERNEL, str(channel)]
    _start_clocks()
    os.write(channel, b".")
    try:
        if prepared:
            prepared["start"]()
        exec(kernel, {"__name__": "__main__", "__file__": _KERNEL, "__builtins__": __builtins__})
    finally:
        os._exit(1)


_said = _take_back_the_way_in()
_is_there = _import_the_images_own()
if _said is not None:
    _park(_said)
if not _is_there:
    # The same error as without this module.
    raise ModuleNotFoundError("No module named %r" % __name__, name=__name__)
