"""IPython's shell in a session."""

import atexit as _atexit
import os as _os
import sys

_interactive = library("IPython.core.interactiveshell")
_showing, _tracebacks = load("showing"), load("tracebacks")
_Type = library("traitlets").Type
_autocall = library("IPython.core.autocall")
_IPyAutocall, _Macro = _autocall.IPyAutocall, _interactive.Macro
_UsageError = library("IPython.core.error").UsageError
_StdinNotImplementedError = library("IPython.core.error").StdinNotImplementedError
_InputRejected = library("IPython.core.error").InputRejected
_BdbQuit = library("bdb").BdbQuit
_traceback, _subprocess = library("traceback"), library("subprocess")
_Base = _interactive.InteractiveShell
_NO_DEBUGGER = load("errors")["NO_DEBUGGER"]
# What IPython can't run a cell without, and cells can replace. Each cell looks at the names: as constants they are not counted, which would
# write to memory that a fork has to copy first.
_PARTS = ("compile", "display_formatter", "display_pub", "displayhook", "display_trap", "builtin_trap", "events", "history_manager")
_PARTS += ("input_transformer_manager", "magics_manager", "prefilter_manager", "InteractiveTB", "SyntaxTB")
# A cell without any of these is Python, before and after IPython looks at it.
_SPECIAL = library("re").compile(r"[%!?]|^\s*[,;/]|\A\s|\A(?:>>>|In \[)", library("re").MULTILINE)
_NO_CELL = "None"
_sleep, _WAIT_S, _MOST_WAITS = library("time").sleep, 0.001, 100
# Functions that run programs and show what ends them.
_RUN_PROGRAMS = {one.__code__ for one in [_Base.safe_execfile, _Base.safe_execfile_ipy, _Base.safe_run_module]}
# What IPython would call, at the beginning of a line.
_WORD = library("re").compile(r"[\w.*]*")


class _Exit(_autocall.ExitAutocall):
    """Ends the cell, also without parentheses."""

    def __call__(self, code=None):
        raise SystemExit(code)


class _Events(_interactive.EventManager):
    """Calls what the client has registered for the beginnings and ends of cells. An interrupt ends the cell there, too."""

    def trigger(self, event, *args, **kwargs):
        for call in self.callbacks[event][:]:
            try:
                call(*args, **kwargs)
            except Exception:
                print("Error in callback %r (for %s), with arguments args %r,kwargs %r:" % (call, event, args, kwargs))
                self.shell.showtraceback()


class ZMQInteractiveShell(_Base):
    """IPython's shell without what needs a terminal, a disk or threads. Libraries recognize a notebook by the name of the class."""

    displayhook_class = _Type(_showing["Hook"])
    display_pub_class = _Type(_showing["Publisher"])
    compiler_class = _Type(load("compiling")["Compiler"])

    # Without the checks that traits make each time.
    execution_count = 1
    last_execution_succeeded, last_execution_result = True, None

    def __init__(self, session, **options):
        self._session = session
        # Whether the code of the cell has begun, the text of an exception that was not printed yet, and those that were.
        self.has_begun, self.pending, self.printed = False, None, []
        # An exception that ended a program or a cell which a magic has run, and which the magic has only shown.
        self.failed_inside = None
        # How many cells run in each other, because code of the client runs some, and whether an exception ends the outermost.
        self._depth, self._ends_cell = 0, False
        self._store = load("memory")["Store"]()
        self._usual_transformers = self._usual_checkers = None
        super().__init__(user_module=session.main, user_ns=session.space, **options)
        self._usual_transformers, self._usual_checkers = list(map(list, self._transformers())), len(self.prefilter_manager.checkers)
        # Nothing happens at the end of a session. In between, it would remove all variables.
        _atexit.unregister(self.atexit_operations)

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
        self.history_manager = load("memory")["HistoryManager"](shell=self, parent=self)
        self.configurables.append(self.history_manager)

    def init_ipython_dir(self, ipython_dir):
        self.ipython_dir = ipython_dir or _os.environ.get("IPYTHONDIR") or _os.path.expanduser("~/.ipython")

    def _ipython_dir_changed(self, change):
        """The folder is not made: nothing is kept there."""

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
        self.InteractiveTB = _tracebacks["Traceback"](mode=self.xmode, theme_name=self.colors, tb_offset=0)

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
        self.has_begun, self.pending, self.printed, self.failed_inside = False, None, [], None
        self._depth, self._ends_cell = 0, False
        missing = [name for name in _PARTS if getattr(self, name, None) is None]
        if missing:
            raise AttributeError("a cell has removed get_ipython().%s" % missing[0])
        self.compile.refused = None
        self.builtin_trap._nested_level = self.display_trap._nested_level = 0
        space, history = self.user_ns, self.history_manager
        if not isinstance(space.get("_oh"), dict):
            space.update((name, value) for name, value in self.user_ns_hidden.items() if name not in space)
            space["_oh"] = history.output_hist
        self.execution_count = number
        history.pad(number)

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
            before = len(_os.listdir("/proc/self/task"))
            scripts.stop_event_loop()
            # A thread that has ended is still counted for a moment.
            for _ in range(_MOST_WAITS):
                if len(_os.listdir("/proc/self/task")) < before:
                    break
                _sleep(_WAIT_S)

    def transform_cell(self, raw_cell):
        is_usual = not self.input_transformers_post and self._transformers() == self._usual_transformers
        if not is_usual:
            return self._transform_unusually(raw_cell)
        if _SPECIAL.search(raw_cell):
            return super().transform_cell(raw_cell)
        cell = raw_cell if raw_cell.endswith("\n") else raw_cell + "\n"
        if cell.find("\n") != len(cell) - 1 or self._is_plain(cell):
            return cell
        return super().transform_cell(raw_cell)

    def _transform_unusually(self, raw_cell):
        """Transforms a cell with the client's transformers. If one fails, no cell could ever remove it."""
        try:
            return super().transform_cell(raw_cell)
        except SyntaxError:
            raise
        except Exception as error:
            self.input_transformers_post.clear()
            for transformers, usual in zip(self._transformers(), self._usual_transformers):
                transformers[:] = usual
            name = load("errors")["one_line"](error)
            self._session.complain("Note: an input transformer has failed (%s). All that were added are removed.\n" % name)
            return super().transform_cell(raw_cell)

    def _is_plain(self, line):
        """Whether a line begins with nothing that IPython calls: a magic without `%`, a macro, `exit`."""
        manager, word = self.prefilter_manager, _WORD.match(line)[0]
        return (
            not self.autocall
            and len(manager.checkers) == self._usual_checkers
            and not manager.transformers
            and word not in self.magics_manager.magics["line"]
            and word not in self.magics_manager.lazy_magics
            and not isinstance(self.user_ns.get(word), (_IPyAutocall, _Macro))
            and "PYTHON-MODE" not in line
        )

    def warm_up(self):
        """Does what a cell does, without one. After a fork the first use of each page of memory takes time, which a waiting process
        has. Nothing is shown: not each cell shows a value, and its checkpoint would keep the pages for that."""
        if (
            self._transformers() != self._usual_transformers
            or len(self.events.callbacks["pre_execute"]) > 1
            or self.events.callbacks["post_execute"]
            or self.ast_transformers
        ):
            # The client would notice.
            return
        kept = self.last_execution_succeeded, self.last_execution_result, self.compile.flags
        self.run_cell(_NO_CELL, silent=True)
        self.compile.forget_last()
        self.last_execution_succeeded, self.last_execution_result, self.compile.flags = kept

    def _transformers(self):
        manager = self.input_transformer_manager
        return [manager.cleanup_transforms, manager.line_transforms, manager.token_transformers]

    def should_run_async(self, raw_cell, *, transformed_cell=None, preprocessing_exc_tuple=None):
        """What is awaited runs in the loop of the session, which `run_code` starts."""
        return False

    def run_cell(self, *arguments, **options):
        result = super().run_cell(*arguments, **options)
        if self._depth:
            # Figures belong to the cell that drew them: a magic may capture what it shows.
            self._session.show_figures()
        error = result.error_before_exec or result.error_in_exec
        if self._depth and isinstance(error, KeyboardInterrupt):
            # A cell in a cell was interrupted, which ends both.
            raise error
        if self._depth and error is not None and _is_of_ipython(sys._getframe(1)):
            self.failed_inside = error
        return result

    def run_cell_magic(self, magic_name, line, cell):
        try:
            return super().run_cell_magic(magic_name, line, cell)
        except _subprocess.CalledProcessError as error:
            if isinstance(error.__context__, KeyboardInterrupt):
                # It was the script that was interrupted.
                raise KeyboardInterrupt from None
            raise

    async def run_code(self, code_obj, result=None, *, async_=False):
        __tracebackhide__ = "__ipython_bottom__"
        self.has_begun = True
        loop = self._session.loop
        self._depth += 1
        try:
            if async_:
                loop.run(eval(code_obj, self.user_global_ns, self.user_ns))
            elif self._depth > 1:
                # What is around it sees the loop.
                exec(code_obj, self.user_global_ns, self.user_ns)
            else:
                with loop.around():
                    exec(code_obj, self.user_global_ns, self.user_ns)
        except BaseException as error:
            if self._depth > 1 and isinstance(error, KeyboardInterrupt):
                raise
            self._ends_cell = self._depth == 1
            if result is not None:
                result.error_in_exec = error
            _tracebacks["leave_out_own"](error)
            if isinstance(error, self.custom_exceptions):
                self._hold(error, "".join(self.CustomTB(type(error), error, error.__traceback__)))
            elif not isinstance(error, (SystemExit, _BdbQuit)):
                self._show_failure((type(error), error, error.__traceback__))
            return True
        finally:
            self._depth -= 1
        return False

    def _show_failure(self, failure):
        options = {"tb_offset": 0, "running_compiled_code": True}
        try:
            self.showtraceback(failure, **options)
        except Exception:
            # It is a function of the client.
            ZMQInteractiveShell.showtraceback(self, failure, **options)

    def _showtraceback(self, etype, evalue, stb):
        """Shows lines that a function of the client has chosen."""
        self._hold(evalue, self.InteractiveTB.stb2text(stb))

    def showtraceback(self, exc_tuple=None, filename=None, tb_offset=None, exception_only=False, running_compiled_code=False):
        try:
            kind, error, trace = self._get_exc_info(exc_tuple)
        except ValueError:
            print("No traceback available to show.", file=sys.stderr)
            return
        if isinstance(error, KeyboardInterrupt) and self._depth and not self._ends_cell and _is_of_ipython(sys._getframe(1)):
            # What a magic runs was interrupted. IPython would go on with the rest of the cell.
            raise error.with_traceback(trace)
        if self._depth and sys._getframe(1).f_code in _RUN_PROGRAMS:
            self.failed_inside = error
        error.__traceback__ = trace
        _tracebacks["leave_out_own"](error)
        trace = error.__traceback__
        try:
            self.compile.register_lines()
            lines = self._lines_of(error, trace, filename, tb_offset, exception_only, running_compiled_code)
            text = self.InteractiveTB.stb2text(lines)
        except Exception:
            # Modules that it uses are broken, or the client's own way to show the exception.
            text = _tracebacks["plain_report"](error)
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
        if _tracebacks["has_group"](error):
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
        """Keeps the text of an exception until it is known whether it ends the cell. Others are printed."""
        if self._depth and not self._ends_cell:
            # As in notebooks, past what takes the output of the code.
            self._session.flush()
            self._session.complain(text)
            return
        self.release()
        self.pending = error, text

    def release(self):
        """Prints the text that was kept."""
        pending, self.pending = self.pending, None
        if pending:
            self.printed.append(pending[0])
            self._session.flush()
            self._session.complain(pending[1])


def _is_of_ipython(frame):
    return str(frame.f_globals.get("__name__")).startswith("IPython.")


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


# It is IPython's to the client.
ZMQInteractiveShell.__module__ = _Base.__module__


class _Nothing:
    def __enter__(self):
        return None

    def __exit__(self, *error):
        return False


_NOTHING = _Nothing()
