"""The magics of notebooks, their shell commands and their questions. `idioms.py` finds them."""

import builtins
import os
import sys
import time

_INSTALLERS = (
    r"(?:python[\d.]*\s+-m\s+)?(?:uv\s+)?(pip[\d.]*|conda|mamba|apt|apt-get|npm)\s+"
    r"(?:-\S+\s+)*(?:install|add|i|update|upgrade)\b"
)
_NO_EFFECT = {
    "matplotlib", "config", "load_ext", "unload_ext", "reload_ext", "autoreload", "aimport", "colors", "gui", "pprint", "automagic",
    "autoawait", "autosave",
}  # fmt: skip
_COMMANDS = {"ls": "ls", "ll": "ls -l", "cat": "cat", "less": "cat", "more": "cat"}
_COMMANDS.update((name, name) for name in ["cp", "mv", "rm", "mkdir", "rmdir"])
# The media types in which their cells are shown.
_SHOWN = {"html": "text/html", "svg": "image/svg+xml", "markdown": "text/markdown", "latex": "text/latex"}
_NO_DEBUGGER = "No user can answer a debugger here. %tb prints the last error again; cells can look at what its functions get and return."
_PYLAB = "import numpy, matplotlib, numpy as np, matplotlib.pyplot as plt\nfrom pylab import *"
# How long `%timeit` measures, in seconds, and how often.
_TIMEIT_S, _TIMEIT_RUNS = 0.2, 7


class UsageError(Exception):
    """A magic that is not there or can't be used like this."""

    __module__ = "builtins"


class Captured:
    """Output of a cell with `%%capture`, and the things that it has shown."""

    __module__ = "builtins"

    def __init__(self, session, stdout, stderr, outputs):
        self._session, self.stdout, self.stderr, self.outputs = session, stdout, stderr, outputs

    def show(self):
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)
        for bundle in self.outputs:
            self._session.show(load("forms")["Raw"](bundle))

    __call__ = show

    def __str__(self):
        return self.stdout


class Magics:
    def __init__(self, session):
        self._session, self._space = session, session.space

    def call(self, kind, text, body=None):
        """Runs a magic of a line, or with a body, of a cell."""
        frame = sys._getframe(1)
        if kind in ("?", "??"):
            return self._help(text, frame, kind == "??")
        if kind in ("!", "!!"):
            return self._shell(text, frame, kind == "!!")
        magic = kind.lstrip("%")
        if body is None:
            if magic in _NO_EFFECT:
                return None
            if magic in ("pip", "conda", "mamba", "uv"):
                return self._shell("%s %s" % (magic, text), frame, False)
            if magic in _COMMANDS:
                return self._shell("%s %s" % (_COMMANDS[magic], text), frame, False)
            if magic in _LINE_MAGICS:
                return _LINE_MAGICS[magic](self, text, frame)
        elif magic in _SHOWN:
            return self._session.show(load("forms")["Raw"]({_SHOWN[magic]: body}))
        elif magic in _CELL_MAGICS:
            return _CELL_MAGICS[magic](self, text, body, frame)
        raise UsageError("there is no magic %s here. There are: %s, and !command for the shell" % (kind, _known()))

    def around(self, magic, text):
        """Returns a function that begins what a whole cell runs in. That returns a function that ends it."""
        return self.stopwatch if magic == "time" else lambda: self._capture(text)

    def _capture(self, text):
        session, words = self._session, text.split()
        numbers = [number for number, name in [(1, "stdout"), (2, "stderr")] if "--no-" + name not in words]
        names = [word for word in words if not word.startswith("-")]
        temporary = library("tempfile").TemporaryFile
        session.flush()
        kept = {number: (os.dup(number), temporary()) for number in numbers}
        shown = [] if "--no-display" not in words else None
        session.captured = shown
        for number, (_, file) in kept.items():
            os.dup2(file.fileno(), number)

        def end():
            try:
                session.show_figures()
            finally:
                session.flush()
                session.captured = None
                texts = {}
                for number, (old, file) in kept.items():
                    os.dup2(old, number)
                    os.close(old)
                    file.seek(0)
                    texts[number] = file.read().decode(errors="replace")
                    file.close()
                outputs = [{kind: _plain(kind, content) for kind, content in forms} for forms in shown or []]
                for name in names[:1]:
                    self._space[name] = Captured(session, texts.get(1, ""), texts.get(2, ""), outputs)

        return end

    def stopwatch(self):
        """Returns a function that prints the time since now."""
        wall, before = time.perf_counter(), os.times()

        def stop():
            spent, after = time.perf_counter() - wall, os.times()
            user, system = after.user - before.user, after.system - before.system
            text = "CPU times: user %s, sys: %s, total: %s\nWall time: %s"
            print(text % (_span(user), _span(system), _span(user + system), _span(spent)))

        return stop

    # The shell.

    def _shell(self, command, frame, is_value):
        command = self._expand(command, frame)
        if self._is_about_installing(command):
            return [] if is_value else None
        subprocess, shell = library("subprocess"), _path_of_shell()
        self._session.flush()
        if is_value:
            done = subprocess.run([shell, "-c", command], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
            self._space["_exit_code"] = done.returncode
            return done.stdout.decode(errors="replace").splitlines()
        done = subprocess.run([shell, "-c", command], stdout=1, stderr=2, stdin=subprocess.DEVNULL)
        self._space["_exit_code"] = done.returncode

    def _expand(self, command, frame):
        """Puts in the values of `{expression}` and `$name`. What has none is for the shell."""
        re = library("re")

        def value(match):
            whole, expression = match[0], match[1] or match[2]
            if whole == "$$":
                return "$"
            try:
                return str(eval(expression, frame.f_globals, frame.f_locals))
            except Exception:
                return whole

        return re.sub(r"\$\$|(?<!\$)\{([^{}\n]+)\}|\$([A-Za-z_]\w*)", value, command)

    def _is_about_installing(self, command):
        """Returns whether a command would install what is there already. Raises if it would install something else."""
        re = library("re")
        match = re.match(r"\s*(?:sudo\s+)?" + _INSTALLERS, command)
        if not match:
            return False
        names = re.findall(r"(?:^|\s)(?:['\"]?)([A-Za-z][\w.-]*)(?:\[[\w,]*\])?\S*", command[match.end() :])
        missing = [name for name in names if not _is_installed(name)]
        if match[1].startswith("pip") and names and not missing:
            print("Already there: %s" % ", ".join(names))
            return True
        what = "%s can't be installed: there is no network here, and the system is read-only." % (", ".join(missing) or "Packages")
        raise UsageError(what + " Use what the image has, or ask its operator for an image that has it.")

    def _cell_shell(self, text, body, frame):
        subprocess = library("subprocess")
        self._session.flush()
        # Lines that install packages which are there already are left out.
        body = "\n".join(line for line in body.split("\n") if not self._is_about_installing(line))
        done = subprocess.run([_path_of_shell(), "-c", body], stdout=1, stderr=2, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, "%%bash")

    def _script(self, text, body, frame):
        """Gives the cell to a program."""
        subprocess = library("subprocess")
        words = library("shlex").split(text)
        command = [word for word in words if word != "--no-raise-error"]
        if not command:
            raise UsageError("%%script needs a program")
        self._session.flush()
        done = subprocess.run(command, input=body.encode(), stdout=1, stderr=2)
        if done.returncode and "--no-raise-error" not in words:
            raise subprocess.CalledProcessError(done.returncode, command)

    def _python(self, text, body, frame):
        self._script("%s %s" % (library("shlex").quote(sys.executable or "python3"), text or "-"), body, frame)

    def _javascript(self, text, body, frame):
        print("There is no browser here: the script does not run.")

    # Time.

    def _time(self, text, frame):
        stop = self.stopwatch()
        try:
            try:
                code = compile(text, "<timed>", "eval")
            except SyntaxError:
                exec(compile(text, "<timed>", "exec"), frame.f_globals, frame.f_locals)
                return None
            return eval(code, frame.f_globals, frame.f_locals)
        finally:
            stop()

    def _timeit(self, text, frame):
        self._measure(text, "pass", frame)

    def _timeit_cell(self, text, body, frame):
        options = library("re").match(r"((?:-[nr]\s*\d+\s*|-[qo]\s*)*)(.*)", text, 16)
        self._measure(options[1] + body, options[2] or "pass", frame)

    def _measure(self, text, setup, frame):
        re = library("re")
        options, code = re.match(r"\s*((?:-[nr]\s*\d+\s*|-[qo]\s*)*)(.*)", text, re.DOTALL).groups()
        counts = dict(re.findall(r"-([nr])\s*(\d+)", options))
        names = {**frame.f_globals, **frame.f_locals}
        timer = library("timeit").Timer(code, setup, globals=names)
        runs = max(int(counts.get("r", _TIMEIT_RUNS)), 1)
        number = int(counts.get("n", 0))
        if not number:
            number, spent = 1, timer.timeit(1)
            while spent < _TIMEIT_S:
                number *= 10
                spent = timer.timeit(number)
        times = [spent / number for spent in timer.repeat(runs, number)]
        mean = sum(times) / runs
        deviation = (sum((one - mean) ** 2 for one in times) / runs) ** 0.5
        text = "%s \u00b1 %s per loop (mean \u00b1 std. dev. of %d run%s, %s loop%s each)"
        plural, many = "s" if runs > 1 else "", "s" if number > 1 else ""
        print(text % (_span(mean), _span(deviation), runs, plural, format(number, ","), many))

    # Files and variables.

    def _pwd(self, text, frame):
        return os.getcwd()

    def _cd(self, text, frame):
        is_quiet = text.startswith("-q")
        place = self._expand(text[2:] if is_quiet else text, frame).strip().strip("'\"")
        os.chdir(os.path.expanduser(place or "~"))
        if not is_quiet:
            print(os.getcwd())

    def _run_file(self, text, frame):
        """Runs a program, in variables of its own at first, which become the session's at its end."""
        words = library("shlex").split(self._expand(text, frame))
        options = []
        while words and words[0].startswith("-"):
            options.append(words.pop(0))
        if not words:
            raise UsageError("%run needs the name of a file")
        path = os.path.expanduser(words[0])
        if not os.path.exists(path) and os.path.exists(path + ".py"):
            path += ".py"
        if path.endswith(".ipynb"):
            raise UsageError("%s is a notebook. Send its cells one by one." % path)
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        module = type(sys)("__main__")
        if "-i" in options:
            vars(module).update(self._space)
        vars(module).update(__file__=path, __builtins__=builtins, __name__="__main__")
        if "-n" in options:
            module.__name__ = os.path.splitext(os.path.basename(path))[0]
        folder, before = os.path.dirname(path), (sys.argv, sys.modules.get("__main__", module))
        sys.argv, sys.modules["__main__"] = [path, *words[1:]], module
        sys.path.insert(0, folder)
        try:
            exec(code, vars(module))
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        finally:
            sys.argv, sys.modules["__main__"] = before
            if folder in sys.path:
                sys.path.remove(folder)
            self._space.update((name, value) for name, value in vars(module).items() if not name.startswith("__"))

    def _load_file(self, text, frame):
        """Prints a file. There is no editor that could get it as the next cell."""
        words = library("shlex").split(self._expand(text, frame))
        if not words:
            raise UsageError("%load needs the name of a file")
        with open(os.path.expanduser(words[-1]), encoding="utf-8", errors="replace") as file:
            print(file.read())

    def _env(self, text, frame):
        if not text:
            return dict(os.environ)
        name, mark, value = text.partition("=")
        if not mark:
            name, mark, value = text.partition(" ")
        if not mark:
            return os.environ[name]
        os.environ[name.strip()] = self._expand(value.strip(), frame)
        print("env: %s=%s" % (name.strip(), os.environ[name.strip()]))

    def _write_file(self, text, body, frame):
        name = self._expand(text, frame)
        mode = "w"
        if name.startswith("-a "):
            name, mode = name[3:].strip(), "a"
        name = name.strip("'\"")
        if not name:
            raise UsageError("%%writefile needs the name of a file")
        verb = "Appending to" if mode == "a" else "Overwriting" if os.path.exists(name) else "Writing"
        print("%s %s" % (verb, name))
        with open(name, mode, encoding="utf-8") as file:
            file.write(body if body.endswith("\n") else body + "\n")

    def _own_names(self):
        module = type(sys)
        shown = [(name, value) for name, value in self._space.items() if not name.startswith("_")]
        return sorted((name, value) for name, value in shown if type(value) is not module)

    def _who_ls(self, text, frame):
        return [name for name, _ in self._own_names()]

    def _who(self, text, frame):
        print("  ".join(name for name, _ in self._own_names()) or "There are no variables.")

    def _whos(self, text, frame):
        rows = [("Variable", "Type", "Data/Info")]
        for name, value in self._own_names():
            shape = getattr(value, "shape", None)
            info = "shape: %s" % (shape,) if isinstance(shape, tuple) else repr(value).partition("\n")[0][:60]
            rows.append((name, type(value).__name__, info))
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        for row in rows:
            print("%-*s   %-*s   %s" % (widths[0], row[0], widths[1], row[1], row[2]))

    def _reset(self, text, frame):
        for name in [name for name in self._space if not (name.startswith("__") and name.endswith("__"))]:
            del self._space[name]

    def _history(self, text, frame):
        for source in list(self._session.sources.values())[:-1]:
            print(source.rstrip("\n"))

    def _precision(self, text, frame):
        text = text.strip("'\"")
        digits = int(text) if text.isdigit() else None
        shown = "%%.%df" % digits if digits is not None else text or None
        try:
            shown and shown % 3.14
        except (ValueError, TypeError):
            raise UsageError("%precision needs a number of digits or a format such as %.3f") from None
        load("forms")["set_float_format"](shown)
        if digits is None and shown:
            digits = int((library("re").search(r"\.(\d+)", shown) or [0, 6])[1])
        if "numpy" in sys.modules:
            sys.modules["numpy"].set_printoptions(precision=8 if digits is None else digits)
        return shown or "%r"

    # Errors and questions.

    def _xmode(self, text, frame):
        print("Errors are always printed as Python prints them.")

    def _debug(self, text, frame):
        print(_NO_DEBUGGER)

    def _last_error(self, text, frame):
        error = getattr(sys, "last_value", None)
        if error is None:
            raise UsageError("there was no error yet")
        sys.stderr.write(load("errors")["report"](error, self._session.register_sources))

    def _list(self, text, frame):
        print(_known())

    def _pylab(self, text, frame):
        exec(_PYLAB, self._space)

    def _help(self, text, frame, with_source):
        try:
            value = eval(text, frame.f_globals, frame.f_locals)
        except Exception:
            print("Object `%s` not found." % text)
            return
        inspect = library("inspect")
        rows = []
        try:
            rows.append(("Signature", text + str(inspect.signature(value))))
        except (ValueError, TypeError):
            pass
        if not callable(value):
            rows.append(("Type", type(value).__name__))
            rows.append(("Value", repr(value)[:1000]))
        rows.append(("Docstring", inspect.getdoc(value) or "<no docstring>"))
        if with_source:
            try:
                rows[-1] = "Source", inspect.getsource(value).rstrip("\n")
            except (OSError, TypeError):
                pass
        for name, content in rows:
            print("%s:%s%s" % (name, "\n" if "\n" in content else " ", content))


def _plain(kind, content):
    """Captured content in the type that programs expect: bytes for pictures, and otherwise text."""
    return content if kind in ("image/png", "image/jpeg") else content.decode()


def _known():
    lines, cells = {*_LINE_MAGICS, *_COMMANDS}, {*_CELL_MAGICS, *_SHOWN, *AROUND}
    return " ".join(sorted(["%" + name for name in lines] + ["%%" + name for name in cells]))


def _path_of_shell():
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def _is_installed(name):
    metadata = library("importlib.metadata")
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _span(seconds):
    """A time in the unit that fits."""
    for unit, size in [("s", 1), ("ms", 1e-3), ("\u00b5s", 1e-6)]:
        if seconds >= size:
            return "%.3g %s" % (seconds / size, unit)
    return "%.3g ns" % (seconds * 1e9) if seconds else "0 ns"


_LINE_MAGICS = {
    "time": Magics._time,
    "timeit": Magics._timeit,
    "pwd": Magics._pwd,
    "cd": Magics._cd,
    "run": Magics._run_file,
    "load": Magics._load_file,
    "pycat": Magics._load_file,
    "env": Magics._env,
    "set_env": Magics._env,
    "who": Magics._who,
    "who_ls": Magics._who_ls,
    "whos": Magics._whos,
    "reset": Magics._reset,
    "history": Magics._history,
    "hist": Magics._history,
    "precision": Magics._precision,
    "xmode": Magics._xmode,
    "debug": Magics._debug,
    "pdb": Magics._debug,
    "tb": Magics._last_error,
    "lsmagic": Magics._list,
    "pylab": Magics._pylab,
}
_CELL_MAGICS = {
    "timeit": Magics._timeit_cell,
    "writefile": Magics._write_file,
    "file": Magics._write_file,
    "bash": Magics._cell_shell,
    "sh": Magics._cell_shell,
    "script": Magics._script,
    "python": Magics._python,
    "python3": Magics._python,
    "javascript": Magics._javascript,
    "js": Magics._javascript,
}
# Magics that run a whole cell and do something around it.
AROUND = {"time", "capture"}
