"""Runs cells in IPython's shell, in an image that has it, and repairs it when a cell has broken it."""

import builtins
import sys

_interactive = library("IPython.core.interactiveshell")
_Base = _interactive.InteractiveShell
_InteractiveShell = load("shell")["ZMQInteractiveShell"]
_Config = library("traitlets.config").Config
_behind_files = load("imports")["behind_files"]
# How many names a note has.
_MOST_NAMES = 10
# Modules whose functions and classes are put back when IPython has failed.
_NEEDED = {"IPython", "traitlets", "re", "tokenize", "ast", "codeop", "contextlib", "functools", "linecache", "types"}
# What differs from one moment to the next.
_OF_CLASSES = {"_instance", "__dict__", "__weakref__", "__doc__", "__abstractmethods__", "_abc_impl"}
_ABSENT = object()
# The cell that is run before the first one comes, and how often.
_REHEARSAL, _REHEARSALS = "0\n0", 16


class Cells:
    """Runs the cells of a session."""

    def __init__(self, session):
        self._session = session
        # Runs cells when IPython can't.
        self._plain = None
        # The shell or the plain cells that ran the last cell.
        self._last = None
        self._make()
        # Private references to what a cell can break, of a time when it worked.
        self._modules = dict(sys.modules) if session.modules is None else session.modules
        self._note_modules()
        self._builtins = dict(vars(builtins))
        self._spaces = _spaces(_name for _name in self._modules if _name.partition(".")[0] in _NEEDED)

    def _make(self):
        self._set_instance(None)
        config = _Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        self._shell = _InteractiveShell.instance(
            session=self._session, config=config, colors="nocolor", xmode="Plain", banner1=""
        )
        self._history = self._shell.history_manager
        manager = self._shell.magics_manager
        load_lazy = getattr(manager, "load_lazy", None)
        if load_lazy is not None:
            # Magics import what they need when they are first called.
            manager.load_lazy = lambda *of: _behind_files(lambda: load_lazy(*of))

    def run(self, number, source):
        """Runs a cell. Returns the exception that ended it, or None."""
        self._last = shell = self._shell
        if sys.modules.get("IPython.core.interactiveshell") is not _interactive:
            # Otherwise IPython would be loaded a second time, and know no shell.
            self._put_back_modules()
        elif len(sys.modules) != len(self._modules):
            self._note_modules()
        try:
            if _InteractiveShell._instance is not shell or _Base._instance is not shell:
                self._set_instance(shell)
            return self._attempt(shell, number, source)
        except _Broken as broken:
            reason = broken.args[0]
        notes = self._put_back()
        try:
            before = self._history
            self._make()
            self._last = shell = self._shell
            self._history.take_over(before)
            failure = self._attempt(shell, number, source)
        except _Broken as broken:
            return self._run_plain(number, source, broken.args[0])
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                return error
            return self._run_plain(number, source, _name_of(error))
        self._note("a cell has broken IPython (%s). Its shell was made anew%s; variables are as they were" % (reason, notes))
        return failure

    def _attempt(self, shell, number, source):
        """Runs a cell in a shell. Returns the exception that ended it. Raises `_Broken` if its code was not even begun."""
        try:
            shell.begin(number)
            result = shell.run_cell(source, store_history=True)
            failure = result.error_before_exec or result.error_in_exec
        except BaseException as error:
            if isinstance(error, UnboundLocalError) and shell.has_begun:
                # IPython returns a result that it does not have, if a second interrupt comes while it handles the first one.
                return KeyboardInterrupt()
            if isinstance(error, KeyboardInterrupt) or shell.has_begun:
                return error
            raise _Broken(_name_of(error)) from None
        if failure is not None and not (shell.has_begun or isinstance(failure, KeyboardInterrupt) or shell.is_refusal(failure)):
            raise _Broken(_name_of(failure))
        if shell.pending and shell.pending[0] is not failure:
            shell.release()
        if failure is None and shell.failed_inside is not None:
            failure = shell.failed_inside
            shell.printed.append(failure)
        shell.end_scripts()
        return failure

    def _run_plain(self, number, source, reason):
        if self._plain is None:
            self._plain = load("plain")["Cells"](self._session, "which a cell has broken", has_display=True)
        self._last = self._plain
        self._note("a cell has broken IPython (%s), so this cell runs without it: magics and `!` are missing" % reason)
        return self._plain.run(number, source)

    def _note(self, text):
        self._session.complain("Note: %s.\n" % text)

    def _set_instance(self, shell):
        for kind in _InteractiveShell.mro():
            if "_instance" in vars(kind) or kind is _InteractiveShell:
                kind._instance = shell

    def _note_modules(self):
        """Keeps modules that came since the last cell. To touch all takes longer after a fork, which has to copy their memory."""
        kept, modules = self._modules, sys.modules
        try:
            for name in reversed(modules):
                if name in kept:
                    break
                kept[name] = modules[name]
        except (RuntimeError, KeyError):
            # A thread imports something.
            pass
        if len(kept) != len(modules):
            self._modules = dict(modules)

    def _put_back_modules(self):
        for name, module in self._modules.items():
            if name not in sys.modules or name.partition(".")[0] in ("IPython", "traitlets"):
                sys.modules[name] = module
        self._note("a cell has removed modules from sys.modules. Those that were there before it were put back")

    def _put_back(self):
        """Puts back what IPython needs and a cell has replaced. Returns what that was, in words."""
        names = _put_back_names(vars(builtins).__setitem__, vars(builtins), self._builtins)
        for owner, kept in self._spaces:
            put = vars(owner).__setitem__ if isinstance(owner, type(sys)) else lambda *pair: type.__setattr__(owner, *pair)
            names += ["%s.%s" % (owner.__name__, name) for name in _put_back_names(put, vars(owner), kept)]
        if not names:
            return ""
        more = " and others" if len(names) > _MOST_NAMES else ""
        return "; these were put back: %s%s" % (", ".join(names[:_MOST_NAMES]), more)

    def magics(self):
        """The names of magics of lines and of cells."""
        magics = self._shell.magics_manager.magics
        return list(magics["line"]), list(magics["cell"])

    def warm_up(self):
        """Prepares memory for the next cell."""
        self._shell.warm_up()

    def rehearse(self, is_awaited):
        """Runs cells before the first one comes, and makes the text of an exception. IPython loads some modules only then, and Python
        adapts its bytecode to what that has met a few times. Everything that the cells leave is removed. It ends early if a cell
        waits for that."""
        shell, history, hook = self._shell, self._shell.history_manager, self._shell.displayhook
        places = [shell.user_ns, shell.user_ns_hidden, history.output_hist, history.output_hist_reprs, vars(history), vars(hook)]
        places.append(library("linecache").cache)
        kept = [(place, dict(place)) for place in places]
        inputs = [history.input_hist_parsed, history.input_hist_raw]
        lengths = [len(cells) for cells in inputs]
        state = shell.last_execution_succeeded, shell.last_execution_result, shell.execution_count, shell.compile.flags
        for _ in range(_REHEARSALS):
            if is_awaited():
                break
            shell.begin(1)
            shell.run_cell(_REHEARSAL, store_history=True)
            shell.compile.forget_last()
            for cells, length in zip(inputs, lengths):
                del cells[length:]
        try:
            raise ValueError
        except ValueError as error:
            if not is_awaited():
                shell.InteractiveTB.structured_traceback(type(error), error, error.__traceback__, tb_offset=0)
        vars(shell.InteractiveTB).pop("tb", None)
        for place, before in kept:
            place.clear()
            place.update(before)
        shell.last_execution_succeeded, shell.last_execution_result, shell.execution_count, shell.compile.flags = state
        self._note_modules()

    def report(self, error):
        """Returns the text of the exception that has ended the cell."""
        if self._last is self._plain:
            return self._plain.report(error)
        pending = self._last.pending
        if pending and pending[0] is error:
            return pending[1]
        if any(one is error for one in self._last.printed):
            return ""
        return load("tracebacks")["plain_report"](error)

    def apart(self, show):
        """Shows something after the code of a cell. Errors of that are printed, and the one that ended the cell is kept."""
        shell = self._shell
        held, shell.pending = shell.pending, None
        try:
            show()
        finally:
            shell.release()
            shell.pending = held

    def display(self, value):
        library("IPython.core.display_functions").display(value)


class _Broken(Exception):
    """IPython has failed before it has run the code of a cell."""


def _name_of(error):
    return load("errors")["one_line"](error)


def _spaces(names):
    """The functions and classes of modules, and those of their classes: pairs of an owner and what it has."""
    found = []
    for module in [sys.modules[name] for name in names]:
        functions = {name: value for name, value in list(vars(module).items()) if callable(value)}
        found.append((module, functions))
        for kind in functions.values():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                found.append((kind, {name: value for name, value in vars(kind).items() if name not in _OF_CLASSES}))
    return found


def _put_back_names(put, now, kept):
    """Puts back what was replaced. Returns its names."""
    changed = sorted(name for name, value in kept.items() if now.get(name, _ABSENT) is not value)
    for name in changed:
        put(name, kept[name])
    return changed
