"""Output of commands on a terminal, output that can't be written, and invalid times."""

import os
import pty
import re
import subprocess

import engine
import pytest
from server import BINARY, configuration, environment

# Those that print: their arguments, and whether they use the engine.
COMMANDS = [
    ["run", "main.py"],
    ["run", "--json", "main.py"],
    ["doctor"],
    ["image", "ls"],
    ["gc"],
    ["config", "check"],
    ["config", "check", "--show"],
    ["config", "schema"],
    ["config", "init", "new"],
    ["install", "cursor", "--print"],
    ["install", "cursor", "--file", "cursor.json"],
    ["token", "ci"],
    ["man", "pages"],
    ["completions", "bash"],
    ["--help"],
    ["run", "--help"],
    ["--version"],
]
FAILED = 125
FULL = "standard output can't be written: the disk is full"
CLOSED = "standard output can't be written: it is closed"


def start(folder, *arguments, **streams):
    languages = {name: {"enabled": False} for name in ("javascript", "go")}
    config = configuration(folder, languageSettings=languages)
    (folder / "main.py").write_text("print(1)")
    options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "timeout": 60}
    command = [BINARY, "--engine", engine.KIND, "--config", str(config), *arguments]
    return subprocess.run(command, cwd=folder, env=environment(folder), **options | streams)


@pytest.mark.any_engine
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_command_whose_output_is_lost_fails(tmp_path, arguments):
    with open("/dev/full", "w") as full:
        finished = start(tmp_path, *arguments, stdout=full)
    assert finished.returncode == FAILED and FULL in finished.stderr, finished


@pytest.mark.any_engine
@pytest.mark.parametrize("arguments", [["run", "main.py"], ["config", "schema"], ["token", "ci"], ["--help"]], ids=" ".join)
def test_a_command_without_an_output_fails(tmp_path, arguments):
    closed = start(tmp_path, *arguments, preexec_fn=lambda: os.close(1))
    assert closed.returncode == FAILED and CLOSED in closed.stderr, closed


@pytest.mark.any_engine
def test_nothing_important_on_standard_error_is_lost(tmp_path):
    (tmp_path / "aside.py").write_text("import sys; print(1, file=sys.stderr)")
    with open("/dev/full", "w") as full:
        for arguments in [["run", "aside.py"], ["token", "ci"]]:
            finished = start(tmp_path, *arguments, stdout=subprocess.PIPE, stderr=full)
            # No line for the file without the token for the client.
            assert (finished.returncode, finished.stdout) == (FAILED, ""), finished


# The title, the screen, the clipboard, a question; also with C1 controls of one byte and of two, and marks that turn text.
STEERS = b"\x1b]0;t\x07\x1b[2J\x1b]52;c;aGk=\x1b\\\x1b[6n\x9b2J\xc2\x9b2J\xe2\x80\xae\x08"
SHOWN = "\\u001b]0;t\\u0007\\u001b[2J\\u001b]52;c;aGk=\\u001b\\\\u001b[6n\ufffd2J\\u009b2J\\u202e\\u0008"
COLOURS = b"\x1b[1;38;5;9mred\x1b[0m 50%\r\tdone\n"


def on_terminal(folder, *arguments):
    """The output of a command on a terminal, and its exit code."""
    ours, theirs = pty.openpty()
    try:
        finished = start(folder, *arguments, stdout=theirs, stderr=theirs)
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:
            # All of it was read.
            pass
        return shown.decode(), finished.returncode
    finally:
        os.close(ours)


@pytest.mark.any_engine
def test_only_colours_of_a_program_pass_to_a_terminal(tmp_path):
    printed = STEERS + COLOURS + b"\x1b[31mopen"
    (tmp_path / "steers.py").write_text(f"import os\nx = [os.write(stream, {printed!r}) for stream in (1, 2)]")
    shown, code = on_terminal(tmp_path, "run", "steers.py")
    # What a program leaves open ends with it, so that nothing after it has its colour or stands in its line.
    one = SHOWN + COLOURS.decode().replace("\n", "\r\n") + "\x1b[31mopen\x1b[0m\r\n"
    assert (shown, code) == (2 * one, 0), shown
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/steers.py").write_text((tmp_path / "steers.py").read_text())
    piped = start(tmp_path / "elsewhere", "run", "steers.py", stdout=subprocess.PIPE, text=False)
    assert (piped.stdout, piped.stderr) == (printed, printed), piped


@pytest.mark.any_engine
@pytest.mark.parametrize(
    "arguments", [["run", "main.py", "--timeout"], ["run", "--"], ["config", "init"], ["--nonsense"], ["install"]], ids=" ".join
)
def test_arguments_in_messages_can_not_control_a_terminal(tmp_path, arguments):
    word = "x\x1b]0;t\x07\x1b[2J\u202e\x9b2J.py"
    if arguments == ["--nonsense"]:
        arguments, word = [], f"--{word}"
    if arguments == ["config", "init"]:
        (tmp_path / word).write_text("")
    shown, code = on_terminal(tmp_path, *arguments, word)
    assert code == FAILED and "]0;t" in shown, shown
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202e]|\x1b(?!\\[[0-9;]*m)", shown), shown


HELLO = '{"jsonrpc":"2.0","id":1,"method":"ping"}\n'


@pytest.mark.any_engine
def test_a_server_whose_answers_are_lost_ends_with_an_error_and_one_whose_log_is_lost_goes_on(tmp_path):
    with open("/dev/full", "w") as full:
        options = {"stdin": None, "input": HELLO}
        unheard = start(tmp_path, "serve", **options, stdout=full)
        assert unheard.returncode == FAILED and "the disk is full" in unheard.stderr, unheard
        unlogged = start(tmp_path, "serve", **options, stdout=subprocess.PIPE, stderr=full)
        assert unlogged.returncode == 0 and '"id":1' in unlogged.stdout, unlogged
    closed = start(tmp_path, "serve", preexec_fn=lambda: os.close(1))
    assert closed.returncode == FAILED and CLOSED in closed.stderr, closed


@pytest.mark.any_engine
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["token", "x", "--expires", "5M"], "write m for minutes"),
        (["run", "--timeout", "5M", "main.py"], '--timeout: "5M" is not a duration: write m for minutes'),
        (["token", "x", "--expires", "0s"], "--expires: the token would be expired at once; give at least 1s"),
        (["token", "x", "--expires", "999ms"], "give at least 1s"),
        (["token", "x", "--expires", "8000y"], "after the year 9999; give a shorter time"),
        (["token", "x", "--expires", "10000y"], "after the year 9999"),
        (["token", "x", "--expires", "10001y"], "the longest is 10000y"),
        (["token", "x", "--expires", "99999999999999999999s"], "the longest is 10000y"),
    ],
    ids=lambda it: " ".join(it) if isinstance(it, list) else "",
)
def test_an_invalid_time_is_refused_with_an_example(tmp_path, arguments, told):
    finished = start(tmp_path, *arguments, stdout=subprocess.PIPE)
    assert finished.returncode != 0 and not finished.stdout, finished
    assert told in finished.stderr and "panicked" not in finished.stderr, finished


@pytest.mark.any_engine
def test_the_shortest_and_the_longest_token(tmp_path):
    for expires in ["1s", "7900y"]:
        finished = start(tmp_path, "token", "x", "--expires", expires, stdout=subprocess.PIPE)
        assert finished.returncode == 0 and "expires=" in finished.stdout, finished


@pytest.mark.any_engine
def test_a_month_is_no_time_in_the_configuration(tmp_path):
    told = 'expected a duration such as "5s" or "2m", not "5M"; write m for minutes'
    config = configuration(tmp_path, pool={"maxAge": "5M"})
    of_file = subprocess.run([BINARY, "--config", config, "config", "check"], capture_output=True, text=True, timeout=60)
    assert of_file.returncode == 1 and f"pool.maxAge: {told}" in of_file.stderr, of_file
    variable = "ISOLATOR_RESULTS__KEEP_FOR"
    env = environment(tmp_path) | {variable: "5M"}
    config = configuration(tmp_path)
    of_environment = subprocess.run(
        [BINARY, "--config", config, "config", "check"], env=env, capture_output=True, text=True, timeout=60
    )
    assert of_environment.returncode == 1 and f"{variable}: {told}" in of_environment.stderr, of_environment
