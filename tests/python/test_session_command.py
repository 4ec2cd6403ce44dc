"""`isolator session`: cells from a pipe, and a prompt on a pseudo terminal."""

import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import termios
import time
from contextlib import contextmanager
from pathlib import Path

import engine
import pytest
from server import BINARY, configuration, environment, instances

# What the undo of a cell is described with.
UNDONE = "the cell was undone: variables and the files of the working directory are as before it"
PAGE = Path(__file__).parents[2] / "docs/commands.md"
# A sandbox that was made for the session, on a busy machine.
PATIENCE_S = 60
CTRL_C = b"\x03"
CTRL_D = b"\x04"
ONE_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PICTURE = f"""
class Picture:
    def _repr_png_(self):
        import base64
        return base64.b64decode("{ONE_PIXEL}")
"""

pytestmark = pytest.mark.only_on("embedded")


def command(folder, *arguments, **settings):
    config = configuration(folder, **settings)
    return [BINARY, "--engine", engine.KIND, "--config", str(config), "session", *arguments]


@contextmanager
def nothing_left(folder):
    """Asserts at the end that no instance that was started here has left something."""
    before = instances(folder)
    seen = set()
    yield seen
    for instance in (seen | instances(folder)) - before:
        assert engine.left(instance, folder) == []


def piped(folder, cells, *arguments, **options):
    """Runs the command with cells on its standard input."""
    with nothing_left(folder):
        text = not isinstance(cells, bytes)
        return subprocess.run(
            command(folder, *arguments),
            input=cells,
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=text,
            timeout=PATIENCE_S,
            **options,
        )


def lines(finished):
    return [json.loads(line) for line in finished.stdout.splitlines()]


def test_piped_cells_share_their_variables(tmp_path):
    finished = piped(tmp_path, "x = 40\nprint('one')\n# %% two\nprint('no line', end='')\nx + 2\n")
    assert (finished.returncode, finished.stdout) == (0, "one\nno line\n42\n"), finished
    assert finished.stderr == "", finished


def test_input_without_separators_is_one_cell(tmp_path):
    finished = piped(tmp_path, "for i in range(2):\n    print(i)\n\n'end'\n")
    assert (finished.returncode, finished.stdout) == (0, "0\n1\n'end'\n"), finished
    assert piped(tmp_path, "").returncode == 0


def test_javascript_has_its_own_separator(tmp_path):
    finished = piped(tmp_path, "let x = 1\n// %%\nlet x = 2\n// %%\nawait Promise.resolve(x + 1)\n", "js")
    assert (finished.returncode, finished.stdout) == (0, "3\n"), finished


def test_a_language_without_an_interpreter_for_cells_keeps_files(tmp_path):
    program = 'package main\n\nimport "os"\n\nfunc main() {{ {} }}\n'
    first = program.format('os.WriteFile("f", []byte("kept"), 0o644)')
    second = program.format('b, _ := os.ReadFile("f"); os.Stdout.Write(append(b, 10))')
    finished = piped(tmp_path, f"{first}// %%\n{second}", "go", "--timeout", "50")
    assert (finished.returncode, finished.stdout) == (0, "kept\n"), finished


def test_the_first_cell_that_fails_ends_it_with_its_exit_code(tmp_path):
    cells = "print(1)\n# %%\n1 / 0\n# %%\nprint(3)\n"
    stopped = piped(tmp_path, cells)
    assert (stopped.returncode, stopped.stdout) == (1, "1\n"), stopped
    assert "ZeroDivisionError" in stopped.stderr and "cell 2 failed" in stopped.stderr, stopped
    went_on = piped(tmp_path, cells, "--keep-going")
    assert (went_on.returncode, went_on.stdout) == (1, "1\n3\n"), went_on
    last = piped(tmp_path, "1 / 0")
    assert last.returncode == 1 and "--keep-going" not in last.stderr, last
    exited = piped(tmp_path, "import sys; sys.exit(7)\n# %%\nprint('no')\n")
    assert (exited.returncode, exited.stdout) == (7, ""), exited
    timed_out = piped(tmp_path, "while True: pass", "--timeout", "1")
    assert timed_out.returncode == 124, timed_out
    assert "isolator: still running after 1s" in timed_out.stderr and UNDONE in timed_out.stderr, timed_out


def test_each_cell_is_a_line_of_json(tmp_path):
    cells = f"{PICTURE}\nimport sys\nprint('out'); print('err', file=sys.stderr)\n# %%\nPicture()\n# %%\nimport os; os._exit(3)\n# %%\n1"
    finished = piped(tmp_path, cells, "--json", "--keep-going")
    first, second, third, fourth = lines(finished)
    assert first["cell"] == 1 and first["status"] == "success" and first["is_alive"], first
    assert (first["stdout"], first["stderr"]) == ("out\n", "err\n"), first
    assert second["result"]["image/png"] == ONE_PIXEL, second
    assert third["undone"] == 1 and third["status"] != "success" and third["is_alive"], third
    assert fourth["result"]["text/plain"] == "1", fourth
    assert finished.returncode != 0 and finished.stderr == "", finished


def test_a_program_can_send_one_cell_after_the_other(tmp_path):
    with nothing_left(tmp_path):
        started = subprocess.Popen(
            command(tmp_path, "--json"),
            env=environment(tmp_path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with started:
            for number in range(1, 4):
                started.stdin.write(f"x = {number}\nx\n# %%\n")
                started.stdin.flush()
                line = json.loads(started.stdout.readline())
                assert line["result"] == {"text/plain": str(number)}, line
            started.stdin.close()
            assert started.wait(PATIENCE_S) == 0


def test_files_and_folders_are_sent_first(tmp_path):
    (tmp_path / "data/sub").mkdir(parents=True)
    (tmp_path / "data/sub/a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    cells = "print(open('data/sub/a.txt').read(), open('x/c').read())"
    finished = piped(tmp_path, cells, "--file", "data", "--file", "x/c=b.txt")
    assert (finished.returncode, finished.stdout) == (0, "a b\n"), finished


def test_errors_come_with_the_fix(tmp_path):
    for arguments, cells, told in [
        (["cobol"], "", "use one of go, javascript, python"),
        (["--timeout", "5M"], "", "write m for minutes"),
        (["--memory-mb", "1"], "", "--memory: 1 is not allowed: use"),
        (["--cpus", "99"], "", "--cpus: 99 is not allowed: use"),
        (["--file", "missing"], "", "--file missing: there is no such file"),
        ([], b"\xff\n", "standard input: this is not text in UTF-8"),
        ([], "#" * (11 << 20), "a cell is longer than"),
    ]:
        finished = piped(tmp_path, cells, *arguments)
        said = finished.stderr if isinstance(finished.stderr, str) else finished.stderr.decode()
        assert finished.returncode == 125 and told in said, (arguments, finished)
        assert "panicked" not in said, finished


def test_output_in_a_pipe_is_as_the_program_wrote_it(tmp_path):
    finished = piped(tmp_path, b"import os; x = os.write(1, b'\\x1b[2J\\xff')")
    assert (finished.returncode, finished.stdout) == (0, b"\x1b[2J\xff"), finished


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda it: it.name)
def test_a_signal_ends_a_cell_from_a_pipe_and_removes_its_sandbox(tmp_path, number):
    with nothing_left(tmp_path) as seen, start_endless(tmp_path) as started:
        seen |= instances(tmp_path)
        started.send_signal(number)
        assert started.wait(PATIENCE_S) == 128 + number


def test_a_closed_or_stalled_output_keeps_no_sandbox(tmp_path):
    with nothing_left(tmp_path) as seen, start_endless(tmp_path, "while True: print('x' * 1000)") as started:
        seen |= instances(tmp_path)
        # The pipe is full by then.
        time.sleep(1)
        started.send_signal(signal.SIGTERM)
        assert started.wait(PATIENCE_S) == 128 + signal.SIGTERM
    gone = "import time\nprint('begun', flush=True)\n# %%\nprint('x' * 100000)\n"
    with nothing_left(tmp_path), subprocess.Popen(
        command(tmp_path), env=environment(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        started.stdout.close()
        started.communicate(gone, timeout=PATIENCE_S)
        assert started.returncode == 0


@contextmanager
def start_endless(folder, code="import time\nwhile True: time.sleep(0.1)"):
    """A command whose cell has begun."""
    started = subprocess.Popen(
        command(folder),
        env=environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        started.stdin.write(f"print('begun')\n{code}\n# %%\n")
        started.stdin.flush()
        assert started.stdout.readline() == "begun\n"
        yield started
    finally:
        started.kill()
        started.wait()
        started.stdin.close()
        started.stdout.close()


class Terminal:
    """The command on its own terminal."""

    def __init__(self, pid, fd):
        self.pid = pid
        self.fd = fd
        self.screen = ""
        self.greeting = ""

    def until(self, text, seconds=PATIENCE_S):
        """The output up to a text, without movements of the cursor."""
        return self._until(re.escape(text), seconds)

    def until_prompt(self, cell, language="python"):
        """The output up to a new prompt. While an input is typed, its prompt is shown anew for each key."""
        return self._until(rf"\r\n\r?{language} \[{cell}\]> ", PATIENCE_S)

    def _until(self, pattern, seconds):
        deadline = time.monotonic() + seconds
        while not re.search(pattern, plain(self.screen)):
            left = deadline - time.monotonic()
            ready = select.select([self.fd], [], [], max(left, 0))[0]
            assert ready, f"no {pattern!r} in {self.screen!r}"
            try:
                self.screen += os.read(self.fd, 65536).decode(errors="replace")
            except OSError as error:
                raise AssertionError(f"ended without {pattern!r}: {self.screen!r}") from error
        shown, self.screen = self.screen, ""
        return plain(shown)

    def type(self, text):
        os.write(self.fd, text if isinstance(text, bytes) else text.encode())

    def ask(self, text, cell, language="python"):
        """Types a line, and returns what is shown until the next prompt."""
        self.type(text + "\r")
        return self.until_prompt(cell, language)

    def wait(self):
        """The exit code. What is still written is read, or the command would wait."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = None
                return os.waitstatus_to_exitcode(status)
            if self.fd is not None and select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.screen += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    time.sleep(0.1)
        raise AssertionError(f"it did not end: {self.screen!r}")

    def hang_up(self):
        os.close(self.fd)
        self.fd = None


def plain(screen):
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen)


@contextmanager
def server_in(folder):
    """A server with the same configuration, and the path of its socket."""
    starting = [*command(folder)[:-1], "serve"]
    with nothing_left(folder), open(folder / "server.log", "w") as log:
        pipe = subprocess.PIPE
        with subprocess.Popen(starting, env=environment(folder), stdin=pipe, stdout=pipe, stderr=log) as started:
            socket = folder / f"isolator/run/{started.pid}.sock"
            deadline = time.monotonic() + PATIENCE_S
            while not socket.exists():
                assert time.monotonic() < deadline, (folder / "server.log").read_text()
                time.sleep(0.05)
            yield socket
            started.stdin.close()
            assert started.wait(PATIENCE_S) == 0, (folder / "server.log").read_text()


@pytest.fixture(params=["own", "server"])
def options(request, tmp_path):
    """The options of a command that makes its sandbox itself, or uses a server."""
    if request.param == "own":
        yield []
    else:
        with server_in(tmp_path) as socket:
            yield ["--server", str(socket)]


@contextmanager
def terminal(folder, *arguments, **variables):
    with nothing_left(folder) as seen:
        starting = command(folder, *arguments)
        env = environment(folder) | {"TERM": "xterm"} | variables
        pid, fd = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.execve(starting[0], starting, env)
        shown = Terminal(pid, fd)
        try:
            termios.tcsetwinsize(fd, (40, 200))
            shown.greeting = shown.until(" [1]> ")
            seen |= instances(folder)
            assert seen
            yield shown
        finally:
            if shown.pid is not None:
                os.kill(shown.pid, signal.SIGKILL)
                os.waitpid(shown.pid, 0)
            if shown.fd is not None:
                os.close(shown.fd)


def test_a_prompt_keeps_variables_and_shows_values(tmp_path):
    with terminal(tmp_path) as prompt:
        prompt.ask("x = 20", 2)
        assert "\r\n42\r\n" in prompt.ask("x * 2 + 2", 3)
        assert "ZeroDivisionError" in prompt.ask("1 / 0", 4)
        prompt.type("for i in range(2):\r    print('i', i)\r")
        prompt.type("\r")
        shown = prompt.until("python [5]> ")
        assert "i 0\r\ni 1\r\n" in shown, shown
        assert "the session goes on, and :quit ends it" in prompt.ask("raise SystemExit", 6)
        # As in IPython, a value that is longer than a line has a line for each entry.
        shown = prompt.ask("list(range(60))", 7)
        assert "59]\r\n" in shown and shown.count("\n") == 1 + 60, shown
        # The page's example is of the same image.
        version = re.search(r"^Python \S+ in a sandbox", PAGE.read_text(), re.MULTILINE)[0]
        assert version in prompt.greeting, prompt.greeting
        prompt.type(CTRL_D)
        assert prompt.wait() == 0


@pytest.mark.parametrize("word", ["exit()", "quit()", "exit", "quit"])
def test_the_words_that_end_other_prompts_end_this_one(tmp_path, word):
    with terminal(tmp_path) as prompt:
        prompt.type(word + "\r")
        assert prompt.wait() == 0


def test_javascript_at_the_prompt(tmp_path):
    with terminal(tmp_path, "node") as prompt:
        prompt.type("function f() {\r  return 6 * 7 }\r")
        prompt.until("javascript [2]> ")
        assert "\r\n42\r\n" in prompt.ask("f()", 3, "javascript")
        assert "can't be rewound" in prompt.ask(":rewind", 3, "javascript")
        prompt.type(":quit\r")
        assert prompt.wait() == 0


def test_output_is_streamed_and_only_its_colours_reach_the_terminal(tmp_path, options):
    with terminal(tmp_path, *options) as prompt:
        prompt.type("import time; print('be' + 'gun\\x1b[2J\\x1b[32m'); time.sleep(30)\r")
        began = time.monotonic()
        while "\x1b[32m" not in prompt.screen and time.monotonic() < began + PATIENCE_S:
            prompt.screen += os.read(prompt.fd, 65536).decode()
        assert "begun\\u001b[2J\x1b[32m" in prompt.screen, prompt.screen
        prompt.screen = ""
        assert time.monotonic() - began < 25
        prompt.type(CTRL_C)
        assert "KeyboardInterrupt" in prompt.until("python [2]> ")
        # Values have the looks that their text gives them.
        prompt.type("class Green:\r    def __repr__(self): return '\\x1b[32mgre' + 'en\\x1b[0m\\x1b[H'\r\r")
        prompt.until("[3]> ")
        prompt.type("Green()\r")
        while "[4]> " not in prompt.screen and time.monotonic() < began + PATIENCE_S:
            prompt.screen += os.read(prompt.fd, 65536).decode()
        assert "\x1b[32mgreen\x1b[0m\\u001b[H\r\n" in prompt.screen, prompt.screen
        prompt.screen = ""
        # Errors are red, and output is not.
        prompt.type("import sys; print('er' + 'ror', file=sys.stderr); print('o' + 'ut')\r")
        deadline = time.monotonic() + PATIENCE_S
        while "[5]> " not in prompt.screen and time.monotonic() < deadline:
            prompt.screen += os.read(prompt.fd, 65536).decode()
        assert "\x1b[31merror" in prompt.screen and "\x1b[31mout" not in prompt.screen, prompt.screen
        prompt.screen = ""
        prompt.type(":quit\r")
        assert prompt.wait() == 0


def test_ctrl_c_interrupts_and_twice_kills_the_cell_and_at_the_prompt_it_clears_the_line(tmp_path, options):
    with terminal(tmp_path, *options) as prompt:
        prompt.ask("import signal, time; h = signal.signal(signal.SIGINT, lambda *_: print('cau' + 'ght')); x = 2", 2)
        # What is typed while a cell runs is for the next prompt.
        prompt.type("time.sleep(1)\rx = 3; print('be' + 'gun'); exec('while True: time.sleep(0.1)')\r")
        prompt.until("begun")
        prompt.type(CTRL_C)
        prompt.until("caught")
        prompt.type(CTRL_C)
        assert f"it was killed; {UNDONE}" in prompt.until("[4]> ")
        prompt.type("not a program")
        prompt.type(CTRL_C)
        prompt.until("[4]> ")
        assert "\r\n2\r\n" in prompt.ask("x", 5)
        prompt.type(":quit\r")
        assert prompt.wait() == 0


def test_effects_of_a_killed_cell_are_reported_without_a_checkpoint(tmp_path):
    # The first interruption is only noticed, and the second one ends the cell.
    (tmp_path / "notices.py").write_text(
        "import signal, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "interrupts = []\n"
        "def notice(*_):\n"
        "    interrupts.append(1)\n"
        "    print('caught', flush=True)\n"
        "    if len(interrupts) > 1:\n"
        "        raise KeyboardInterrupt\n"
        "h = signal.signal(signal.SIGINT, notice)\n"
    )
    with terminal(tmp_path) as prompt:
        prompt.ask(":run notices.py", 2)
        prompt.type("x = 3; print('be' + 'gun'); exec('while True: time.sleep(0.1)')\r")
        prompt.until("begun")
        prompt.type(CTRL_C)
        prompt.until("caught")
        prompt.type(CTRL_C)
        shown = prompt.until("[3]> ")
        assert "it was stopped; what it did until then stays" in shown and "as before" not in shown, shown
        assert "\r\n3\r\n" in prompt.ask("x", 4)
        # What can't be interrupted costs all cells since the last checkpoint.
        prompt.ask("h = signal.signal(signal.SIGINT, signal.SIG_IGN)", 5)
        prompt.type("print('de' + 'af'); exec('while True: time.sleep(0.1)')\r")
        prompt.until("deaf")
        prompt.type(CTRL_C)
        time.sleep(0.3)
        prompt.type(CTRL_C)
        assert "the last 5 cells were undone" in prompt.until("[6]> ")
        assert "NameError" in prompt.ask("x", 7)
        prompt.type(":quit\r")
        assert prompt.wait() == 0


def test_commands_work_on_files_and_state(tmp_path, options):
    (tmp_path / "in put.txt").write_text("in")
    (tmp_path / "cell.py").write_text("y = 5\nprint('from file')")
    with terminal(tmp_path, *options) as prompt:
        assert "there are no files yet" in prompt.ask(":files", 1)
        prompt.ask(":put 'in put.txt'", 1)
        assert re.search(r" 2  in put\.txt", prompt.ask(":files", 1))
        prompt.ask("n = open('out.bin', 'wb').write(b'\\0' * 3000000)", 2)
        assert "wrote out.bin (3000000 bytes)" in prompt.ask(":get out.bin", 2)
        assert (tmp_path / "out.bin").read_bytes() == bytes(3000000)
        assert "exists and is not replaced" in prompt.ask(":get out.bin", 2)
        assert "wrote other (3000000 bytes)" in prompt.ask(":get out.bin other", 2)
        assert "missing" in prompt.ask(":get missing", 2) and not (tmp_path / "missing").exists()
        assert "from file" in prompt.ask(":run cell.py", 3)
        assert "in put.txt" in prompt.ask("!ls", 4)
        assert "exit code 3" in prompt.ask("!exit 3", 5)
        assert "do you mean :files?" in prompt.ask(":fiels", 5)
        limits = prompt.ask(":limits", 5)
        assert "output of 8 MiB is shown" in limits and "processes and threads" in limits, limits
        assert ":save N [TO]" in prompt.ask(":help", 5)
        assert "undid 1 cell" in prompt.ask(":rewind", 5)
        assert "NameError" in prompt.ask("y", 6)
        assert "there is no checkpoint 60 cells back" in prompt.ask(":rewind 60", 6)
        prompt.type(":quit\r")
        assert prompt.wait() == 0


def test_a_picture_is_announced_and_can_be_saved(tmp_path, options):
    (tmp_path / "picture.py").write_text(PICTURE)
    with terminal(tmp_path, *options) as prompt:
        prompt.ask(":run picture.py", 2)
        shown = prompt.ask("Picture()", 3)
        assert "picture image/png, 71 bytes (:save 1 to keep it)" in shown or ":save 1 to keep it" in shown, shown
        assert "wrote shown-1.png" in prompt.ask(":save 1", 3)
        assert (tmp_path / "shown-1.png").read_bytes().startswith(b"\x89PNG")
        assert "is not replaced" in prompt.ask(":save 1", 3)
        assert "use 1 to 1" in prompt.ask(":save 2", 3)
        prompt.type(":quit\r")
        assert prompt.wait() == 0


def test_the_history_is_private_and_persistent(tmp_path):
    with terminal(tmp_path) as prompt:
        prompt.ask("remembered = 1", 2)
        prompt.type(CTRL_D)
        assert prompt.wait() == 0
    history = tmp_path / "isolator/history-python"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with terminal(tmp_path) as prompt:
        prompt.type(b"\x1b[A")
        prompt.until("remembered = 1")
        prompt.type(CTRL_C)
        prompt.until("python [1]> ")
        prompt.type(CTRL_D)
        assert prompt.wait() == 0
    before = history.read_text()
    assert piped(tmp_path, "secret = 1").returncode == 0
    assert history.read_text() == before


def test_a_cell_that_ends_its_interpreter_is_undone_and_all_killed_is_the_end(tmp_path, options):
    with terminal(tmp_path, *options) as prompt:
        prompt.ask("x = 1", 2)
        assert UNDONE in prompt.ask("x = 2; import os; os._exit(3)", 3)
        assert "\r\n1\r\n" in prompt.ask("x", 4)
        # The checkpoints too, so that there is nothing to go back to.
        prompt.type("import os; os.kill(-1, 9); os._exit(3)\r")
        code = prompt.wait()
        shown = plain(prompt.screen)
        assert code == 3 and "the session has ended with this cell" in shown, (code, shown)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda it: it.name)
def test_a_signal_at_the_prompt_ends_it_and_sets_the_terminal_back(tmp_path, number):
    with terminal(tmp_path) as prompt:
        prompt.type("half an inp")
        prompt.until("half an inp")
        os.kill(prompt.pid, number)
        assert prompt.wait() == 128 + number
        local = termios.tcgetattr(prompt.fd)[3]
        assert local & termios.ICANON and local & termios.ECHO


@pytest.mark.parametrize("running", [False, True], ids=["at the prompt", "in a cell"])
def test_a_closed_terminal_ends_it(tmp_path, running):
    with terminal(tmp_path) as prompt:
        if running:
            prompt.type("print('be' + 'gun')\rimport time; time.sleep(600)\r")
            prompt.until("begun")
            time.sleep(1)
        prompt.hang_up()
        assert prompt.wait() in (0, 128 + signal.SIGHUP, 125)
