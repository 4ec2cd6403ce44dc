"""Runs the code of a cell in the session's module, and shows its value."""

import builtins
import sys
from gc import disable as gc_disable, enable as gc_enable, isenabled as gc_is_enabled
from posix import getcwd

from _ast import Expr, Expression

_ONLY_AST, _TOP_LEVEL_AWAIT, _COROUTINE = 0x400, 0x2000, 0x80
# The changes of `from __future__ import` last for later cells.
_FUTURES = 0x1FE0000
_ABSENT = object()
# So wide are tables in notebooks. In a terminal, pandas fits them to its window.
_COLUMNS_OPTION, _COLUMNS = "display.max_columns", 20
_linecache = library("linecache")


class Session:
    def __init__(self, channel, main):
        self._channel, self._main, self._space = channel, main, vars(main)
        # The sources of all cells, by the names of their files.
        self.sources = {}
        # The width of the terminal on which values are shown, if it is one.
        self.columns = None
        # Whether a program gets what cells show.
        self.is_for_program = False
        # The number of the cell that runs, and where its files come back from.
        self.number, self.folder = 0, getcwd()
        # While what a cell shows is captured, the forms of each thing.
        self.captured = None
        self._futures = 0
        # The last values, the newest first.
        self._values = []
        self.loop = load("loop")["Loop"](channel, self.flush, self._report)
        self._streams = {name: getattr(sys, name, None) for name in ["stdin", "stdout", "stderr"]}
        self._encodings = {
            name: (getattr(stream, "encoding", "utf-8"), getattr(stream, "errors", "strict"))
            for name, stream in self._streams.items()
        }
        builtins.display = self._make_display()
        sys.meta_path.append(_Finder())
        for module, fit in _FITTED.items():
            if module in sys.modules:
                fit(self, sys.modules[module])
            else:
                sys.meta_path.insert(0, _Fitter(self, module, fit))

    def run(self, number, source):
        """Runs a cell. Raises what it raises."""
        name, self.number = "<cell %d>" % number, number
        self._repair()
        self.captured = None
        self.set_source(name, source)
        begin = end = None
        try:
            tree = self._parse(source, name)
        except SyntaxError as error:
            failure = error
        else:
            failure = None
        if failure:
            # The idioms of notebooks are looked at only when it is no valid Python.
            tree, source, begin = load("idioms")["parse"](self, source, name, failure, self._parse)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], Expr) else None
        codes = [(self._compile(tree, name, "exec"), None)]
        if last is not None:
            codes.append((self._compile(Expression(last.value), name, "eval"), last))
        tree = None
        try:
            if begin:
                end = begin()
            # A cell that awaits is in the loop as a whole.
            awaits = any(code.co_flags & _COROUTINE for code, _ in codes)
            with self.loop.around():
                for code, shown in codes:
                    value = self._evaluate(code, awaits)
                    if value is not None and shown is not None and not _is_quiet(source, shown):
                        self._remember(number, value)
                        self.show(value, is_result=True)
        finally:
            if end:
                end()

    def _parse(self, source, name):
        # A tree is many objects. They must not make the collector look at all that the client has.
        was_enabled = gc_is_enabled()
        gc_disable()
        try:
            return compile(source, name, "exec", _ONLY_AST | _TOP_LEVEL_AWAIT | self._futures, True)
        finally:
            if was_enabled:
                gc_enable()

    def _compile(self, tree, name, mode):
        code = compile(tree, name, mode, _TOP_LEVEL_AWAIT | self._futures, True)
        self._futures |= code.co_flags & _FUTURES
        return code

    def _evaluate(self, code, awaits):
        if not awaits:
            return eval(code, self._space)
        return self.loop.run(eval(code, self._space) if code.co_flags & _COROUTINE else self._call(code))

    async def _call(self, code):
        return eval(code, self._space)

    def _report(self, head, failure):
        """Reports what has happened to the session's event loop."""
        text = head if failure is None else head + load("errors")["report"](failure, self.register_sources)
        load("channel")["print_error"](text)

    def _remember(self, number, value):
        space, values = self._space, self._values
        now = space.get("_", _ABSENT)
        if now is _ABSENT or values and now is values[0]:
            values.insert(0, value)
            del values[3:]
            for name, kept in zip(["_", "__", "___"], values):
                space[name] = kept
        space["_%d" % number] = value

    def show(self, value, is_result=False):
        """Shows something: as the value of the cell, or because the client asks for it."""
        forms = load("forms")["forms"](value, self)
        if forms is None:
            return
        if self.captured is not None:
            self.captured.append(forms)
            return
        self.send_forms(forms, is_result)

    def send_forms(self, forms, is_result=False):
        parts = []
        for kind, content in forms:
            kind = kind.encode()
            parts += [len(kind).to_bytes(2, "big"), kind, len(content).to_bytes(4, "big"), content]
        self._channel.send(b"d", bytes([is_result]), *parts)

    def _make_display(self):
        def display(*objects, include=None, exclude=None, metadata=None, transient=None, display_id=None, raw=False, **more):
            """Shows objects in the richest form that they have. A bundle of forms is shown with `raw`."""
            for one in objects:
                self.show(load("forms")["Raw"](one) if raw else one)
            if display_id is not None:
                return load("forms")["Handle"](display, display_id)

        display.__module__ = "builtins"
        return display

    def show_figures(self):
        """Shows the figures of matplotlib that are still open, and closes them, as notebooks do at the end of a cell."""
        figures = getattr(sys.modules.get("matplotlib._pylab_helpers"), "Gcf", None)
        if figures is None:
            return
        try:
            for manager in sorted(figures.get_all_fig_managers(), key=lambda manager: manager.num):
                if hasattr(manager, "_is_shown"):
                    # In our image it shows itself when it is closed.
                    manager._is_shown = True
                else:
                    self.show(manager.canvas.figure)
                figures.destroy(manager.num)
        finally:
            # One that can't be drawn must not come again after each cell.
            for manager in figures.get_all_fig_managers():
                manager._is_shown = False
                figures.destroy(manager.num)

    def set_source(self, name, source):
        """Keeps the source of a cell, in place of what was known of it."""
        self.sources[name] = source
        _known_lines().pop(name, None)
        self.register_sources()

    def register_sources(self):
        """Makes the sources of cells known to whatever prints or inspects lines. The client may have emptied that."""
        cache = _known_lines()
        for name, source in reversed(self.sources.items()):
            if name in cache:
                break
            lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            cache[name] = len(source), None, [line + "\n" for line in lines], name

    def _repair(self):
        """Brings back what a cell has closed, cleared or deleted, and that each cell needs."""
        self._space.setdefault("__builtins__", builtins)
        self._space.setdefault("__name__", "__main__")
        sys.modules.setdefault("__main__", self._main)
        for number, name in enumerate(self._streams):
            if _is_closed(self._streams[name]):
                encoding, errors = self._encodings[name]
                stream = open(number, "r" if number == 0 else "w", encoding=encoding, errors=errors, closefd=False)
                if number:
                    stream.reconfigure(write_through=True)
                self._streams[name] = stream
                setattr(sys, "__%s__" % name, stream)
            if _is_closed(getattr(sys, name, _ABSENT)):
                setattr(sys, name, self._streams[name])

    def flush(self):
        for name in ["stdout", "stderr"]:
            for stream in [getattr(sys, name, None), self._streams[name]]:
                try:
                    stream.flush()
                except Exception:
                    # It is closed, not a stream, or has no reader.
                    pass

    @property
    def space(self):
        """The variables of the session."""
        return self._space


def _known_lines():
    """The cache of `linecache`, which a cell may have broken."""
    caches = [getattr(module, "cache", None) for module in (sys.modules.get("linecache"), _linecache)]
    return next((cache for cache in caches if isinstance(cache, dict)), {})


class _Finder:
    """Finds a small part of IPython, which notebooks import from, if the image does not have it."""

    _NAMES = {"IPython": True, "IPython.core": True, "IPython.core.display": False, "IPython.display": False}

    def find_spec(self, name, path=None, target=None):
        if name not in self._NAMES:
            return None
        return type(sys.__spec__)(name, self, is_package=self._NAMES[name])

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        load("notebooks")["fill"](module)


class _Fitter:
    """Has a module fitted to sessions as soon as it is imported."""

    def __init__(self, session, module, fit):
        self._session, self._module, self._fit = session, module, fit

    def find_spec(self, name, path=None, target=None):
        if name != self._module:
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec and hasattr(spec.loader, "exec_module"):
            loader, execute = spec.loader, spec.loader.exec_module

            def exec_module(module):
                del loader.exec_module
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                self._fit(self._session, module)

            loader.exec_module = exec_module
        return spec


def _widen_tables(session, pandas):
    try:
        # Any other number was chosen by the image.
        if pandas.get_option(_COLUMNS_OPTION) == 0:
            pandas.set_option(_COLUMNS_OPTION, _COLUMNS)
    except Exception:
        # A module of the client may have this name.
        pass


def _show_figures_whole(session, pictures):
    try:
        load("figures")["fit"](session, pictures)
    except Exception:
        # The same.
        pass


# Functions that adapt modules to sessions, by the names of the modules. The second module is the image's own.
_FITTED = {
    "asyncio": lambda session, asyncio: session.loop.fit(asyncio),
    "pandas": _widen_tables,
    "isolator_pictures": _show_figures_whole,
}


def _is_closed(stream):
    if stream is _ABSENT:
        return True
    try:
        return stream is not None and stream.closed is True
    except ValueError:
        # It was detached from its buffer.
        return True
    except Exception:
        return False


def _is_quiet(source, last):
    """Whether a semicolon follows the last expression."""
    lines = source.encode().split(b"\n")
    rest = [lines[last.end_lineno - 1][last.end_col_offset :]] + lines[last.end_lineno :]
    return any(line.split(b"#")[0].strip(b" \t\r\f\\)").startswith(b";") for line in rest)

