"""The prompt of `isolator session`: colours, indentations, names that the kernel completes, search and paste."""

import json
import os
import re
import select
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from server import environment
from test_session_command import CTRL_C, CTRL_D, PATIENCE_S, command, nothing_left, terminal

CTRL_R = b"\x12"
ARROW_RIGHT = "\x1b[C"
KEYWORD, RED, PLACE = "\x1b[1;34m", "\x1b[31m", "\x1b[36m"
CONTINUATION = "\x1b[90m...\x1b[0m"
PASTE, END_OF_PASTE = "\x1b[200~", "\x1b[201~"
# Longer than between the keys of a program that types.
MOMENT_S = 0.1
# The kernel answers in a few milliseconds, and its deadline is 500 ms.
QUICK_S = 0.4

pytestmark = pytest.mark.only_on("embedded")


def press(prompt, *keys):
    """Types each text or key as a user does, who takes a moment in between."""
    for key in keys:
        time.sleep(MOMENT_S)
        prompt.type(key)


def raw_until(prompt, text):
    """The output up to a text, with its colours."""
    deadline = time.monotonic() + PATIENCE_S
    while text not in prompt.screen:
        assert select.select([prompt.fd], [], [], max(deadline - time.monotonic(), 0))[0], prompt.screen
        prompt.screen += os.read(prompt.fd, 65536).decode(errors="replace")
    shown, prompt.screen = prompt.screen, ""
    return shown


def leave(prompt):
    prompt.type(":quit\r")
    assert prompt.wait() == 0


def test_code_and_tracebacks_are_coloured(tmp_path):
    with terminal(tmp_path) as prompt:
        prompt.type("if 0: pass")
        assert f"{KEYWORD}if" in raw_until(prompt, f"{KEYWORD}pass\x1b[0m")
        prompt.type(CTRL_C)
        prompt.until_prompt(1)
        prompt.type("1/0\r")
        shown = raw_until(prompt, "[2]> ")
        assert f"{PLACE}  Cell In[1], line 1" in shown and "\x1b[1;31mZeroDivisionError\x1b[0m" in shown, shown
        leave(prompt)


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_there_are_no_colours_where_none_are_wanted(tmp_path, variables):
    with terminal(tmp_path, **variables) as prompt:
        prompt.type("if 1: 1/0\r")
        if variables.get("TERM") != "dumb":
            prompt.type("\r")
        shown = raw_until(prompt, "[2]> ")
        assert "ZeroDivisionError" in shown and "\x1b[3" not in shown and "\x1b[1;" not in shown, shown
        leave(prompt)


def test_a_block_is_indented_and_ends_with_an_empty_line(tmp_path):
    with terminal(tmp_path) as prompt:
        press(prompt, "def f(x):", "\r", "if x:", "\r", "return 1", "\r", "return 2", "\r", "\r")
        prompt.until("[2]> ")
        assert "\r\n(1, 2)\r\n" in prompt.ask("f(1), f(0)", 3)
        # An indentation goes back as a whole.
        press(prompt, "if 0:", "\r", "3", "\r", b"\x7f", "else:", "\r", "print('el' + 'se')", "\r", "\r")
        assert "\r\nelse\r\n" in prompt.until("[4]> ")
        leave(prompt)


def test_a_line_in_which_an_input_goes_on_is_marked_until_something_is_typed(tmp_path):
    with terminal(tmp_path) as prompt:
        press(prompt, "if 1:", "\r")
        raw_until(prompt, CONTINUATION)
        press(prompt, "print(6 * 7)", "\r")
        # Each key shows the whole input anew, and only the next line has the mark again.
        assert raw_until(prompt, CONTINUATION).count("...") == 1
        press(prompt, "\r")
        shown = prompt.until("[2]> ")
        assert "\r\n42\r\n" in shown and "..." not in shown, shown
        # The key that accepts a suggestion does not accept the mark.
        press(prompt, "if 1:", "\r", ARROW_RIGHT, "print(6 * 9)", "\r", ARROW_RIGHT, "\r")
        assert "\r\n54\r\n" in prompt.until("[3]> ")
        leave(prompt)


def test_pasted_code_keeps_its_indentation_and_runs_at_once(tmp_path):
    code = "def f():\n    if 1:\n        return 6\n\nf() * 7"
    with terminal(tmp_path) as prompt:
        prompt.type(f"{PASTE}{code}{END_OF_PASTE}")
        press(prompt, "\r")
        assert "\r\n42\r\n" in prompt.until("[2]> ")
        # A terminal that does not mark what is pasted sends it at once, and its empty line ends the block.
        prompt.type(code.replace("\n", "\r") + "\r")
        prompt.until("[3]> ")
        assert "42\r\n" in prompt.until("[4]> ")
        leave(prompt)


def test_names_are_completed_without_evaluating_anything(tmp_path):
    with terminal(tmp_path) as prompt:
        prompt.ask("class A: attribute = 7; computed = property(lambda self: print('eval' + 'uated'))", 2)
        prompt.ask("a = A()", 3)
        press(prompt, "a.attr")
        prompt.until("a.attr")
        began = time.monotonic()
        prompt.type("\t")
        prompt.until("a.attribute", QUICK_S)
        assert time.monotonic() - began < QUICK_S
        assert "\r\n7\r\n" in prompt.ask("", 4)
        press(prompt, "a.computed.", "\t", "x", CTRL_C)
        assert "evaluated" not in prompt.until_prompt(4)
        # It was no cell.
        assert "undid 1 cell" in prompt.ask(":rewind", 4)
        assert "\r\n7\r\n" in prompt.ask("a.attribute", 5)
        leave(prompt)


def test_names_of_javascript_are_completed(tmp_path):
    with terminal(tmp_path, "js") as prompt:
        prompt.ask("const thing = { inner: 42 }", 2, "javascript")
        press(prompt, "thing.in", "\t")
        prompt.until("thing.inner")
        assert "\r\n42\r\n" in prompt.ask("", 3, "javascript")
        leave(prompt)


@contextmanager
def http_server(folder):
    """The URL of a server that listens, and the path of its audit log."""
    audit, path = folder / "audit.jsonl", folder / "server.log"
    starting = [*command(folder, audit={"path": str(audit)})[:-1], "serve", "--http", "127.0.0.1:0"]
    with nothing_left(folder), path.open("w") as log:
        with subprocess.Popen(starting, env=environment(folder), stdin=subprocess.DEVNULL, stderr=log) as started:
            try:
                deadline = time.monotonic() + PATIENCE_S
                while not (url := re.search(r'url="([^"]+)"', path.read_text())):
                    assert time.monotonic() < deadline and started.poll() is None, path.read_text()
                    time.sleep(0.05)
                yield url[1], audit
            finally:
                started.terminate()
            assert started.wait(PATIENCE_S) == 0, path.read_text()


class Between:
    """A slow way to a server, which can treat requests for names as `names` says."""

    def __init__(self, url):
        self.to = urlsplit(url)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = self.to._replace(netloc=f"127.0.0.1:{self.listener.getsockname()[1]}").geturl()
        self.open = {self.listener}
        self.delay_s = 0
        self.names = "pass"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        for one in list(self.open):
            one.shutdown(socket.SHUT_RDWR)
            one.close()
        self.open.clear()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection((self.to.hostname, self.to.port))
            self.open |= {client, server}
            for one, other in [(client, server), (server, client)]:
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one, other):
        try:
            while data := one.recv(65536):
                if b"complete_code" in data and self.names == "unknown":
                    data = data.replace(b"complete_code", b"complete_soon")
                elif b"complete_code" in data and self.names != "pass":
                    # Nothing is passed on until the client, or the way, has enough of it.
                    if self.names == "stall":
                        one.recv(65536)
                    break
                time.sleep(self.delay_s)
                other.sendall(data)
        except OSError:
            pass
        for end in {one, other} & self.open:
            self.open.discard(end)
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            # The thread of the other direction reads its end.
            end.close() if end is one else None


def test_names_come_over_http_and_a_server_that_is_slow_or_gone_costs_only_them(tmp_path):
    with http_server(tmp_path) as (url, audit):
        way = Between(url)
        with terminal(tmp_path, "js", "--server", way.url) as prompt:
            prompt.ask("const thing = { inner: 42 }", 2, "javascript")
            press(prompt, "thing.in", "\t")
            prompt.until("thing.inner")
            assert "\r\n42\r\n" in prompt.ask("", 3, "javascript")
            leave(prompt)
        with terminal(tmp_path, "--server", way.url) as prompt:
            prompt.ask("number = 42", 2)
            way.delay_s = 0.15
            press(prompt, "num", "\t")
            prompt.until("number")
            way.delay_s = 0
            assert "\r\n42\r\n" in prompt.ask("", 3)
            for cell, way.names in enumerate(["unknown", "cut", "stall"], 3):
                press(prompt, "num", "\t", "\t")
                # The rest is typed while the names are awaited.
                assert "\r\n42\r\n" in prompt.ask("ber", cell + 1), way.names
            way.close()
            press(prompt, "num", "\t", "\t")
            assert "can't be reached" in prompt.ask("ber", 6)
            leave(prompt)
    called = [(line["tool"], line["status"]) for line in map(json.loads, audit.read_text().splitlines())]
    assert called.count(("complete_code", "success")) == 2, called
    assert not [tool for tool, _ in called if tool == "check_syntax"], called


def test_names_of_a_hostile_kernel_do_nothing(tmp_path):
    hostile = """
import __main__, gc, sys
sessions = [it for it in gc.get_objects() if type(it).__name__ == "Session" and hasattr(it, "channel")]
channel, send = sessions[0].channel, type(sessions[0].channel).send
def lie(self, kind, *parts):
    if kind == b"q":
        names = [b"pri\\x1b]0;owned\\x07", b"pri\\xff", b":put /etc/passwd", b"pri" * 100]
        parts = [(1 << 20).to_bytes(4, "big"), *(p for n in names * 5000 for p in (len(n).to_bytes(2, "big"), n))]
    return send(self, kind, *parts)
type(channel).send = lie
"""
    (tmp_path / "hostile.py").write_text(hostile)
    with terminal(tmp_path) as prompt:
        prompt.ask(":run hostile.py", 2)
        press(prompt, "pri", "\t", "\t", CTRL_C)
        shown = prompt.until_prompt(2)
        assert "owned" not in shown and "passwd" not in shown, shown
        assert "\r\n2\r\n" in prompt.ask("1 + 1", 3)
        leave(prompt)


def test_a_kernel_that_is_busy_gives_no_names_and_the_session_goes_on(tmp_path):
    with terminal(tmp_path) as prompt:
        prompt.ask("import asyncio, time; task = asyncio.get_event_loop().create_task(asyncio.to_thread(time.sleep, 0))", 2)
        prompt.ask("async def busy():\r    await asyncio.sleep(0.2); time.sleep(1.5)\r", 3)
        prompt.ask("task = asyncio.get_event_loop().create_task(busy())", 4)
        time.sleep(0.5)
        press(prompt, "ti", "\t", "\t", CTRL_C)
        prompt.until_prompt(4)
        time.sleep(1.5)
        # The late answers are no names for this.
        press(prompt, "asyn", "\t")
        prompt.until("async")
        press(prompt, CTRL_C)
        prompt.until_prompt(4)
        assert "\r\n2\r\n" in prompt.ask("1 + 1", 5)
        leave(prompt)


def test_the_history_is_searched(tmp_path):
    with terminal(tmp_path) as prompt:
        prompt.ask("'need' + 'le'", 2)
        prompt.ask("'other'", 3)
        press(prompt, CTRL_R, "le'")
        prompt.until("(reverse-i-search)`le'': 'need' + 'le'")
        press(prompt, "\r")
        assert "\r\n'needle'\r\n" in prompt.until("[4]> ")
        prompt.type(CTRL_D)
        assert prompt.wait() == 0


def test_only_pictures_have_a_line_besides_their_text(tmp_path):
    with terminal(tmp_path) as prompt:
        shown = prompt.ask("import pandas; pandas.DataFrame({'a': [1]})", 2)
        assert "0  1" in shown and ":save" not in shown, shown
        assert ":save 1 to keep it" in prompt.ask("from IPython.display import HTML; HTML('<b>')", 3)
        leave(prompt)
