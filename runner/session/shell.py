"""Runs cells in IPython's shell, in an image that has it."""

import builtins
import os as _os
import sys
from types import TracebackType as _TracebackType

_interactive = library("IPython.core.interactiveshell")
_showing = load("showing")
_Config = library("traitlets.config").Config
_Type = library("traitlets").Type
_ExitAutocall = library("IPython.core.autocall").ExitAutocall
_UsageError = library("IPython.core.error").UsageError
_StdinNotImplementedError = library("IPython.core.error").StdinNotImplementedError
_ultratb = library("IPython.core.ultratb")
_InputRejected = library("IPython.core.error").InputRejected
_BdbQuit = library("bdb").BdbQuit
_traceback, _linecache, _subprocess = library("traceback"), library("linecache"), library("subprocess")
_InteractiveShell = _interactive.InteractiveShell
_OWN_FILES = folder + "/"
_NO_DEBUGGER = "No user can answer a debugger here. %tb prints the last error again; cells can look at what its functions get and return."
# How many names a note has.
_MOST_NAMES = 10
# How often a traceback shows the same line.
_MOST_REPEATED = 3


class _Exit(_ExitAutocall):
    """Ends the cell, also without parentheses."""

    def __call__(self, code=None):
        raise SystemExit(code)


class _Traceback(_ultratb.AutoFormattedTB):
    """The texts of tracebacks."""

    def _format_list(self, extracted_list):
        """Lines that repeat, as those of an endless recursion do, are counted."""
        lines, last, times = [], None, 0
        for entry, line in zip(extracted_list, super()._format_list(extracted_list)):
            place = tuple(entry)[:3]
            times = times + 1 if place == last else 1
            last = place
            if times <= _MOST_REPEATED:
                lines.append(line)
            elif times == _MOST_REPEATED + 1:
                lines.append(1)
            else:
                lines[-1] += 1
        return ["  [Previous line repeated %d more times]\n" % one if isinstance(one, int) else one for one in lines]


class _Compiler(_interactive.CachingCompiler):
    """Compiles cells, and remembers what it could not compile: that is an error of the client's."""

    refused = None

    def ast_parse(self, *arguments, **options):
        try:
            return super().ast_parse(*arguments, **options)
        except BaseException as error:
            self.refused = error
            raise

    def __call__(self, *arguments, **options):
        try:
            return super().__call__(*arguments, **options)
        except BaseException as error:
            self.refused = error
            raise


class _Events(_interactive.EventManager):
    """Calls what the client has registered for the beginnings and ends of cells. An interrupt ends the cell there, too."""

    def trigger(self, event, *args, **kwargs):
        for call in self.callbacks[event][:]:
            try:
                call(*args, **kwargs)
            except Exception:
                print("Error in callback %r (for %s), with arguments args %r,kwargs %r:" % (call, event, args, kwargs))
                self.shell.showtraceback()


class Shell(_InteractiveShell):
    """IPython's shell without what needs a terminal, a disk or threads."""

    displayhook_class = _Type(_showing["Hook"])
    display_pub_class = _Type(_showing["Publisher"])
    compiler_class = _Type(_Compiler)

    def __init__(self, session, **options):
        self._session = session
        # Whether the code of the cell has begun, and the text of an exception that was not printed yet.
        self.has_begun, self.pending = False, None
        self._store = load("store")["Store"]()
        super().__init__(user_module=session.main, user_ns=session.space, **options)

    @property
    def db(self):
        return self._store

    def init_magics(self):
        super().init_magics()
        try:
            self.magics_manager.register_lazy("store", "IPython.extensions.storemagic:StoreMagics", "line")
        except Exception:
            # Another version of IPython. `%load_ext storemagic` brings it.
            pass

        # As in notebooks.
        for name in ("less", "more"):
            self.magics_manager.register_alias(name, "pycat", "line")

    def init_history(self):
        self.history_manager = load("history")["HistoryManager"](shell=self, parent=self)
        self.configurables.append(self.history_manager)

    def init_profile_dir(self, profile_dir):
        """There is none."""

    def init_virtualenv(self):
        """The interpreter is the image's."""

    def init_displayhook(self):
        super().init_displayhook()
        self.displayhook.session = self._session

    def init_display_pub(self):
        super().init_display_pub()
        self.display_pub.session = self._session

    def init_display_formatter(self):
        self.display_formatter = _showing["formatter"](self, self._session)
        self.configurables.append(self.display_formatter)

    def init_traceback_handlers(self, custom_exceptions):
        super().init_traceback_handlers(custom_exceptions)
        self.InteractiveTB = _Traceback(mode=self.xmode, theme_name=self.colors, tb_offset=0)

    def init_events(self):
        self.events = _Events(self, _interactive.available_events)
        self.events.register("pre_execute", self._clear_warning_registry)

    def _exiter_default(self):
        return _Exit(self)

    def ask_exit(self):
        """Ends the cell."""
        raise SystemExit

    def _tee(self, channel):
        """The runner keeps the output of a cell."""
        return _NOTHING

    def _format_exception_for_storage(self, exception, filename=None, running_compiled_code=False):
        return {"ename": type(exception).__name__, "evalue": "", "traceback": []}

    def begin(self, number):
        """Makes it ready for a cell: brings back what it needs of what the client can change."""
        self.has_begun, self.pending, self.compile.refused = False, None, None
        self.builtin_trap._nested_level = self.display_trap._nested_level = 0
        space, history = self.user_ns, self.history_manager
        if "_oh" not in space:
            space.update((name, value) for name, value in self.user_ns_hidden.items() if name not in space)
            space.setdefault("_oh", history.output_hist)
        self.execution_count = number
        for inputs in [history.input_hist_parsed, history.input_hist_raw]:
            if len(inputs) < number:
                # Cells without Python, as those of a shell, count too.
                inputs += [""] * (number - len(inputs))
        history.db_input_cache.clear()

    def continue_history(self, history):
        """Takes over the cells and values of the shell before."""
        own = self.history_manager
        for name in ["input_hist_parsed", "input_hist_raw"]:
            getattr(own, name)[:] = getattr(history, name)
        own.output_hist.update(history.output_hist)

    def is_refusal(self, error):
        """Whether an exception that came before the code says that the cell is no code, or one of the client's own hooks failed."""
        return (
            error is self.compile.refused
            or isinstance(error, (SyntaxError, _UsageError, _InputRejected))
            or bool(self.ast_transformers or self.input_transformers_post)
        )

    def end_scripts(self):
        """Ends the thread in which `%%bash` and its like have run. No checkpoint can be made of a process with threads."""
        scripts = dict.get(self.magics_manager.registry, "ScriptMagics")
        if scripts is not None and scripts.event_loop is not None and not scripts.bg_processes:
            scripts.stop_event_loop()

    def should_run_async(self, raw_cell, *, transformed_cell=None, preprocessing_exc_tuple=None):
        """What is awaited runs in the loop of the session, which `run_code` starts."""
        return False

    async def run_code(self, code_obj, result=None, *, async_=False):
        __tracebackhide__ = "__ipython_bottom__"
        self.has_begun = True
        loop = self._session.loop
        try:
            if async_:
                loop.run(eval(code_obj, self.user_global_ns, self.user_ns))
            else:
                with loop.around():
                    exec(code_obj, self.user_global_ns, self.user_ns)
        except BaseException as error:
            if result is not None:
                result.error_in_exec = error
            error.__traceback__ = _without_own(error.__traceback__)
            if isinstance(error, self.custom_exceptions):
                self._hold(error, "".join(self.CustomTB(type(error), error, error.__traceback__)))
            elif not isinstance(error, (SystemExit, _BdbQuit)):
                self.showtraceback((type(error), error, error.__traceback__), tb_offset=0, running_compiled_code=True)
            return True
        return False

    def showtraceback(self, exc_tuple=None, filename=None, tb_offset=None, exception_only=False, running_compiled_code=False):
        try:
            kind, error, trace = self._get_exc_info(exc_tuple)
        except ValueError:
            print("No traceback available to show.", file=sys.stderr)
            return
        trace = _without_own(trace)
        if error.__traceback__ is not trace:
            error = error.with_traceback(trace)
        try:
            lines = self._lines_of(error, trace, filename, tb_offset, exception_only, running_compiled_code)
            text = self.InteractiveTB.stb2text(lines)
        except Exception:
            # Modules that it uses are broken, or the client's own way to show the exception.
            text = load("errors")["report"](error)
        text = text if text.endswith("\n") else text + "\n"
        self._hold(error, text + _NO_DEBUGGER + "\n" if self.call_pdb else text)

    def _lines_of(self, error, trace, filename, tb_offset, exception_only, running_compiled_code):
        kind = type(error)
        if isinstance(error, _UsageError):
            return ["UsageError: %s" % error]
        if isinstance(error, SyntaxError):
            if filename:
                error.filename = filename
            return self.SyntaxTB.structured_traceback(kind, error, _traceback.extract_tb(trace) if running_compiled_code else [])
        if exception_only:
            return self.InteractiveTB.get_exception_only(kind, error)
        if hasattr(error, "_render_traceback_"):
            return error._render_traceback_()
        if _has_group(error):
            return _traceback.format_exception(kind, error, trace)
        return self.InteractiveTB.structured_traceback(kind, error, trace, tb_offset=tb_offset)

    def showsyntaxerror(self, filename=None, running_compiled_code=False):
        self.showtraceback(None, filename, running_compiled_code=running_compiled_code)

    def show_usage_error(self, exc):
        self._hold(exc, "UsageError: %s\n" % exc)

    # Commands of the system.

    def system(self, cmd):
        subprocess = _subprocess
        cmd = self.var_expand(cmd, depth=1)
        code = self._command(cmd)
        self.user_ns["_exit_code"] = code
        if self.system_raise_on_error and code:
            raise subprocess.CalledProcessError(code, cmd)

    def _command(self, command):
        """Runs a command whose output comes with that of the cell, or goes to where the client has sent that. Returns its code."""
        self._session.flush()
        try:
            return self._run(command)
        except KeyboardInterrupt:
            # Where it was waiting says nothing.
            raise KeyboardInterrupt from None

    def _run(self, command):
        if self._session.has_own_stream("stdout") and self._session.has_own_stream("stderr"):
            return _subprocess.run([_shell_path(), "-c", command], stdout=1, stderr=2, stdin=_subprocess.DEVNULL).returncode
        done = _subprocess.run([_shell_path(), "-c", command], capture_output=True, stdin=_subprocess.DEVNULL)
        sys.stdout.write(done.stdout.decode(errors="replace"))
        sys.stderr.write(done.stderr.decode(errors="replace"))
        return done.returncode

    def getoutput(self, cmd, split=True, depth=0):
        if cmd.rstrip().endswith("&"):
            raise OSError("The output of a command in the background can't be read: its end is not waited for.")
        command, pipe = self.var_expand(cmd, depth=depth + 1), _subprocess.PIPE
        self._session.flush()
        done = _subprocess.run(
            [_shell_path(), "-c", command], stdout=pipe, stderr=_subprocess.STDOUT, stdin=_subprocess.DEVNULL
        )
        self.user_ns["_exit_code"] = done.returncode
        if self.system_raise_on_error and done.returncode:
            raise _subprocess.CalledProcessError(done.returncode, cmd)
        text = done.stdout.decode(errors="replace")
        return _interactive.SList(text.splitlines()) if split else _interactive.LSString(text)

    # What needs a user, a terminal or a window.

    def init_hooks(self):
        super().init_hooks()
        self.set_hook("show_in_pager", _print_page, 0)
        self.set_hook("editor", _refuse_editor, 0)

    def ask_yes_no(self, prompt, default=None, interrupt=None):
        """Magics know what to do if no user can be asked."""
        raise _StdinNotImplementedError("no user can answer here")

    def set_next_input(self, s, replace=False):
        """Prints the text. There is no editor that could get it as the next cell."""
        print(s)

    def debugger(self, force=False):
        if force or self.call_pdb:
            print(_NO_DEBUGGER, file=sys.stderr)

    def enable_gui(self, gui=None):
        if gui not in (None, "", "inline", "agg"):
            raise _UsageError("there are no windows here, so %r has no event loop; figures are shown as pictures" % gui)

    def enable_matplotlib(self, gui=None):
        """Figures are always shown as pictures with the cell."""
        if gui not in (None, "auto", "inline", "agg"):
            print("There are no windows here: figures are shown as pictures, whichever backend is chosen.", file=sys.stderr)
        inline = library("matplotlib_inline.config").InlineBackend.instance(parent=self)
        inline.shell = self
        if inline not in self.configurables:
            self.configurables.append(inline)
        return "inline", "inline"

    def _hold(self, error, text):
        """Keeps the text of an exception until it is known whether it ends the cell. An earlier one is printed."""
        self.release()
        self.pending = error, text

    def release(self):
        """Prints the text that was kept."""
        pending, self.pending = self.pending, None
        if pending:
            self._session.flush()
            self._session.complain(pending[1])


def _print_page(shell, text, start=0, screen_lines=0):
    if isinstance(text, dict):
        text = text.get("text/plain", "")
    print("\n".join(text.splitlines()[start:]) if start else text)


def _refuse_editor(shell, *arguments, **options):
    raise _UsageError("there is no editor here; %%writefile writes a file")


def _shell_path():
    """The shell for commands. Notebooks are written for Bash."""
    path = _os.environ.get("SHELL") or "/bin/bash"
    return path if _os.path.exists(path) else "/bin/sh"


class _Nothing:
    def __enter__(self):
        return None

    def __exit__(self, *error):
        return False


_NOTHING = _Nothing()


def _without_own(trace):
    """A traceback without the frames of the kernel."""
    places = []
    while trace:
        if not trace.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
            places.append(trace)
        trace = trace.tb_next
    kept = None
    for place in reversed(places):
        # Most have none between their own.
        kept = place if place.tb_next is kept else _TracebackType(kept, place.tb_frame, place.tb_lasti, place.tb_lineno)
    return kept


def _has_group(error):
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, BaseExceptionGroup):
            return True
        error = error.__cause__ or error.__context__
    return False


class Cells:
    """Runs the cells of a session."""

    def __init__(self, session):
        self._session = session
        # Runs cells when IPython can't.
        self._plain = None
        # The shell or the plain cells that ran the last cell.
        self._last = None
        self._make()
        # Private references to what a cell can break, of the time when it worked.
        self._modules, self._builtins = dict(sys.modules), dict(vars(builtins))
        self._methods = [(kind, dict(vars(kind))) for kind in [Shell, _InteractiveShell]]

    def _make(self):
        for kind in Shell.mro():
            if getattr(kind, "_instance", None) is not None:
                kind._instance = None
        config = _Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        # The first argument of a singleton of traitlets.
        self._shell = Shell.instance(session=self._session, config=config, colors="nocolor", xmode="Plain", banner1="")

    def run(self, number, source):
        self._last = shell = self._shell
        if sys.modules.get("IPython.core.interactiveshell") is not _interactive or Shell._instance is not shell:
            # Otherwise IPython would be loaded a second time, and know no shell.
            self._put_back_modules()
        try:
            return self._attempt(shell, number, source)
        except _Broken as broken:
            reason = broken.args[0]
        notes, history = self._put_back(), shell.history_manager
        try:
            self._make()
            self._last = shell = self._shell
            shell.continue_history(history)
            failure = self._attempt(shell, number, source)
        except BaseException as error:
            if shell.has_begun or isinstance(error, KeyboardInterrupt):
                return error
            return self._run_plain(number, source, error)
        self._note("a cell has broken IPython (%s). Its shell was made anew%s; variables are as they were." % (reason, notes))
        return failure

    def _attempt(self, shell, number, source):
        """Runs a cell in a shell. Returns the exception that ended it. Raises `_Broken` if its code was not even begun."""
        try:
            shell.begin(number)
            result = shell.run_cell(source, store_history=True)
            failure = result.error_before_exec or result.error_in_exec
            if isinstance(failure, KeyboardInterrupt):
                return failure
        except BaseException as error:
            failure = error
            if isinstance(error, KeyboardInterrupt) or shell.has_begun:
                return error
            raise _Broken(_name_of(error)) from None
        if failure is not None and not shell.has_begun and not shell.is_refusal(failure):
            raise _Broken(_name_of(failure))
        if shell.pending and shell.pending[0] is not failure:
            shell.release()
        shell.end_scripts()
        return failure

    def _run_plain(self, number, source, error):
        if self._plain is None:
            self._plain = load("plain")["Cells"](self._session)
        self._last = self._plain
        self._note("a cell has broken IPython (%s), so this cell runs without it: magics and `!` are missing." % _name_of(error))
        return self._plain.run(number, source)

    def _note(self, text):
        self._session.complain("Note: %s\n" % text)

    def _put_back_modules(self):
        for name, module in self._modules.items():
            if name not in sys.modules or name.partition(".")[0] == "IPython":
                sys.modules[name] = module
        for kind in Shell.mro():
            if "_instance" in vars(kind) or kind is Shell:
                kind._instance = self._shell
        self._note("a cell has removed modules from sys.modules. Those of Python and IPython were put back.")

    def _put_back(self):
        """Puts back what IPython needs and a cell has replaced. Returns what that was, in words."""
        space, found = vars(builtins), []
        changed = [name for name, value in self._builtins.items() if space.get(name, _NOTHING) is not value]
        if changed:
            space.update((name, self._builtins[name]) for name in changed)
            found.append("builtins were put back: %s" % ", ".join(sorted(changed)[:_MOST_NAMES]))
        for kind, methods in self._methods:
            changed = [name for name, value in methods.items() if vars(kind).get(name, _NOTHING) is not value]
            changed = [name for name in changed if name not in ("_instance", "__dict__", "__weakref__")]
            for name in changed:
                type.__setattr__(kind, name, methods[name])
            if changed:
                found.append("methods of its shell were put back: %s" % ", ".join(sorted(changed)[:_MOST_NAMES]))
        return "".join("; " + one for one in found)

    def report(self, error):
        """Returns the text of the exception that has ended the cell."""
        if self._last is self._plain:
            return self._plain.report(error)
        pending = self._last.pending
        if pending and pending[0] is error:
            return pending[1]
        return load("errors")["report"](error)

    def display(self, value):
        library("IPython.core.display_functions").display(value)


class _Broken(Exception):
    """IPython has failed before it has run the code of a cell."""


def _name_of(error):
    return load("errors")["one_line"](error)
