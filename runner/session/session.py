"""A session: its variables, its streams, and how things are shown. `ipython.py` and `plain.py` run its cells."""

import builtins
import sys
from functools import partial
from posix import getcwd, write

_ABSENT = object()
_finder = load("imports")["finder"]
# So wide are tables in notebooks. In a terminal, pandas fits them to its window.
_COLUMNS_OPTION, _COLUMNS = "display.max_columns", 20
# The part of IPython that runs cells. An image can be without it.
_IPYTHON = "IPython.core.interactiveshell"


class Session:
    def __init__(self, channel, main):
        self.channel, self.main, self.space = channel, main, vars(main)
        # The width of the terminal on which values are shown, if it is one.
        self.columns = None
        # Whether a program gets what cells show.
        self.is_for_program = False
        # The number of the cell that runs, and where its files come back from.
        self.number, self.folder = 0, getcwd()
        self._cells = None
        # The modules that were imported before the kernel, in a template.
        self.modules = None
        # What the first cell tells.
        self._note = None
        # The event loop.
        self.loop = load("loop")["Loop"](self)
        self._streams = {name: getattr(sys, name, None) for name in ["stdin", "stdout", "stderr"]}
        self._encodings = {
            name: (getattr(stream, "encoding", "utf-8"), getattr(stream, "errors", "strict"))
            for name, stream in self._streams.items()
        }
        for name, fit in _FITTED.items():
            _finder.fit(name, partial(fit, self))

    @property
    def cells(self):
        """Runs the cells. It is made when it is needed first, or earlier if there is time."""
        if self._cells is None:
            self._cells = self._in_ipython() or load("plain")["Cells"](self)
        return self._cells

    def _in_ipython(self):
        is_imported = False
        try:
            library(_IPYTHON)
            is_imported = True
            return load("ipython")["Cells"](self)
        except Exception as error:
            if is_imported or not isinstance(error, ImportError):
                reason = load("errors")["one_line"](error)
                self._note = "Note: the IPython of this image can't run sessions (%s). Cells run without it.\n" % reason
            return None

    def run(self, number, source):
        """Runs a cell. Returns the exception that ended it, or None."""
        self.number = number
        self._repair()
        cells = self.cells
        if self._note:
            note, self._note = self._note, None
            self.complain(note)
        return cells.run(number, source)

    def send(self, forms, is_result=False):
        """Sends the forms of something that is shown: pairs of a media type and its content."""
        parts = []
        for kind, content in forms:
            kind = kind.encode()
            parts += [len(kind).to_bytes(2, "big"), kind, len(content).to_bytes(4, "big"), content]
        self.channel.send(b"d", bytes([is_result]), *parts)

    def show_figures(self):
        """Shows the figures of matplotlib that are still open, and closes them, as notebooks do at the end of a cell."""
        figures = getattr(sys.modules.get("matplotlib._pylab_helpers"), "Gcf", None)
        if figures is not None:
            self.cells.apart(lambda: self._show_figures(figures))

    def _show_figures(self, figures):
        try:
            for manager in sorted(figures.get_all_fig_managers(), key=lambda manager: manager.num):
                if hasattr(manager, "_is_shown"):
                    # In our image it shows itself when it is closed.
                    manager._is_shown = True
                else:
                    self.cells.display(manager.canvas.figure)
                figures.destroy(manager.num)
        finally:
            # One that can't be drawn must not come again after each cell.
            for manager in figures.get_all_fig_managers():
                manager._is_shown = False
                figures.destroy(manager.num)

    def _repair(self):
        """Brings back what a cell has closed, cleared or deleted, and that each cell needs."""
        _finder.put_back()
        self.space.setdefault("__builtins__", builtins)
        self.space.setdefault("__name__", "__main__")
        sys.modules.setdefault("__main__", self.main)
        for number, name in enumerate(self._streams):
            if _is_closed(self._streams[name]):
                encoding, errors = self._encodings[name]
                stream = open(number, "r" if number == 0 else "w", encoding=encoding, errors=errors, closefd=False)
                if number:
                    stream.reconfigure(write_through=True)
                self._streams[name] = stream
                setattr(sys, "__%s__" % name, stream)
            current = getattr(sys, name, _ABSENT)
            # First, so that a stream of the client that raises an interrupt ends no other cell.
            setattr(sys, name, self._streams[name])
            if not _is_closed(current):
                setattr(sys, name, current)

    def flush(self):
        for name in ["stdout", "stderr"]:
            for stream in [getattr(sys, name, None), self._streams[name]]:
                try:
                    stream.flush()
                except Exception:
                    # It is closed, not a stream, or has no reader.
                    pass

    def complain(self, text):
        """Writes to the cell's standard error, whatever the client has made of `sys.stderr`."""
        rest = memoryview(text.encode(errors="backslashreplace"))
        try:
            while rest:
                rest = rest[write(2, rest) :]
        except OSError:
            pass

    def has_own_stream(self, name):
        """Whether a stream of `sys` goes to the pipes of the cell."""
        return getattr(sys, name, None) is self._streams[name]


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


def _refuse_questions(session, module):
    """No user can type a password."""

    def getpass(prompt="Password: ", stream=None, **more):
        raise EOFError("EOF when reading a line")

    getpass.__module__ = "getpass"
    module.getpass = getpass


def _refuse_debugger(session, module):
    """No user can answer `breakpoint()`, so the cell goes on."""

    def set_trace(*arguments, **more):
        session.flush()
        session.complain(load("errors")["NO_DEBUGGER"] + "\n")

    set_trace.__module__ = "pdb"
    module.set_trace = set_trace


# Functions that adapt modules to sessions, by the names of the modules. The second module is the image's own.
_FITTED = {
    "asyncio": lambda session, asyncio: session.loop.fit(asyncio),
    "pandas": _widen_tables,
    "getpass": _refuse_questions,
    "pdb": _refuse_debugger,
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
    except AttributeError:
        return False
    except KeyboardInterrupt:
        raise
    except BaseException:
        # It would end each cell before its code, also one that puts another stream there.
        return True
