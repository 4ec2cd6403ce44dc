"""Runs cells as Python's prompt does: in an image without IPython, and when a cell has broken IPython beyond repair."""

import builtins
import sys
from gc import disable as gc_disable, enable as gc_enable, isenabled as gc_is_enabled

from _ast import Expr, Expression

_ONLY_AST, _TOP_LEVEL_AWAIT, _COROUTINE = 0x400, 0x2000, 0x80
# The changes of `from __future__ import` last for later cells.
_FUTURES = 0x1FE0000
_ABSENT = object()
_linecache = library("linecache")
# Of the sources of all cells.
_MOST_BYTES = 16 << 20


class UsageError(Exception):
    """Input for IPython, where there is none."""

    __module__ = "builtins"


class Cells:
    def __init__(self, session, why_no_ipython="which this image does not have", has_display=False):
        self._session, self._space, self._why_no_ipython = session, session.space, why_no_ipython
        # The sources of all cells, by the names of their files.
        self._sources, self._weights = {}, load("weights")["Weights"](_MOST_BYTES)
        self._futures = 0
        # The last values, the newest first.
        self._values = []
        if not has_display:
            builtins.display = self._make_display()

    def run(self, number, source):
        """Runs a cell. Returns the exception that ended it, or None."""
        try:
            self._run(number, source)
        except BaseException as error:
            return error
        return None

    def _run(self, number, source):
        name = "<cell %d>" % number
        self._sources[name] = source
        for old in self._weights.add(name, sys.getsizeof(source)):
            del self._sources[old]
            _known_lines().pop(old, None)
        _known_lines().pop(name, None)
        self._register_sources()
        try:
            tree = self._parse(source, name)
        except SyntaxError as error:
            self._refuse_notebooks(source, error)
            raise
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], Expr) else None
        codes = [(self._compile(tree, name, "exec"), None)]
        if last is not None:
            codes.append((self._compile(Expression(last.value), name, "eval"), last))
        tree = None
        for code, shown in codes:
            value = self._evaluate(code)
            if value is not None and shown is not None and not _is_quiet(source, shown):
                self._remember(number, value)
                self.display(value, is_result=True)

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

    def _evaluate(self, code):
        if code.co_flags & _COROUTINE:
            return self._session.loop.run(eval(code, self._space))
        with self._session.loop.around():
            return eval(code, self._space)

    def _refuse_notebooks(self, source, error):
        """Raises an error that explains what is missing, if the compiler has stopped at a magic or a shell command."""
        lines = source.split("\n")
        line = lines[min(error.lineno or len(lines), len(lines)) - 1].strip()
        if line.startswith(("%", "!", "?")) or line.endswith("?"):
            text = "%r needs IPython, %s. Write it in Python."
            raise UsageError(text % (line[:60], self._why_no_ipython)) from None

    def _remember(self, number, value):
        space, values = self._space, self._values
        now = space.get("_", _ABSENT)
        if now is _ABSENT or values and now is values[0]:
            values.insert(0, value)
            del values[3:]
            for name, kept in zip(["_", "__", "___"], values):
                space[name] = kept
        space["_%d" % number] = value

    def apart(self, show):
        """Shows something after the code of a cell."""
        show()

    def display(self, value, is_result=False):
        """Shows something: as the value of the cell, or because the client asks for it."""
        forms = load("forms")["forms"](value, self._session)
        if forms is not None:
            self._session.send(forms, is_result)

    def _make_display(self):
        def display(*objects, include=None, exclude=None, metadata=None, transient=None, display_id=None, raw=False, **more):
            """Shows objects in the richest form that they have. A bundle of forms is shown with `raw`."""
            for one in objects:
                self.display(load("forms")["Raw"](one) if raw else one)
            if display_id is not None:
                return load("forms")["Handle"](display, display_id)

        display.__module__ = "builtins"
        return display

    def magics(self):
        """The names of magics of lines and of cells."""
        return (), ()

    def warm_up(self):
        """Nothing here uses much memory."""

    def rehearse(self, is_awaited):
        """Nothing here takes longer at first."""

    def report(self, error):
        """Returns the text of an exception that has ended a cell."""
        return load("errors")["report"](error, self._register_sources)

    def _register_sources(self):
        """Makes the sources of cells known to whatever prints or inspects lines. The client may have emptied that."""
        cache = _known_lines()
        for name, source in reversed(self._sources.items()):
            if name in cache:
                break
            lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            cache[name] = len(source), None, [line + "\n" for line in lines], name


def _known_lines():
    """The cache of `linecache`, which a cell may have broken."""
    caches = [getattr(module, "cache", None) for module in (sys.modules.get("linecache"), _linecache)]
    return next((cache for cache in caches if isinstance(cache, dict)), {})


def _is_quiet(source, last):
    """Whether a semicolon follows the last expression."""
    lines = source.encode().split(b"\n")
    rest = [lines[last.end_lineno - 1][last.end_col_offset :]] + lines[last.end_lineno :]
    return any(line.split(b"#")[0].strip(b" \t\r\f\\)").startswith(b";") for line in rest)
