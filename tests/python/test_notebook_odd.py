"""`isolator session` with odd notebooks, odd places for `--out`, and Ctrl-C. nbformat judges what is written."""

import json
import os
import signal
import subprocess
import warnings
from contextlib import contextmanager

import nbformat
import pytest
from server import environment
from test_notebook_files import code, executed, notebook, run, write
from test_session_command import PATIENCE_S, command, nothing_left, server_in

pytestmark = pytest.mark.only_on("embedded")


def text(value):
    return json.dumps(value).encode()


def kernel(*cells, **metadata):
    """A notebook whose metadata is only this."""
    return {**notebook(*cells), "metadata": metadata}


OLD = {"metadata": {}, "nbformat": 3, "nbformat_minor": 0, "worksheets": [{"cells": [], "metadata": {}}]}
BOM = b"\xef\xbb\xbf"

# Each file, and what is said of it.
REFUSED = {
    "empty": (b"", "this is not the JSON of a notebook"),
    "cut": (text(notebook(code("1")))[:-9], "this is not the JSON of a notebook"),
    "no UTF-8": (text(notebook(code("1"))).replace(b'"A"', b'"\xff"'), "this is not the JSON of a notebook"),
    "UTF-16": (json.dumps(notebook()).encode("utf-16"), "this is not the JSON of a notebook"),
    "a list": (b"[]", "this is no notebook: it has to be an object"),
    "version 3": (text(OLD), "version 3 of the format"),
    "version 5": (text({**notebook(), "nbformat": 5}), "version 5 of the format"),
    "a version that is text": (text({**notebook(), "nbformat": "4"}), "nbformat is missing or no number"),
    "no cells": (text({"metadata": {}, "nbformat": 4, "nbformat_minor": 4}), "it has no cells"),
    "cells that are null": (text({**notebook(), "cells": None}), "cells is no list"),
    "a cell without source": (text(notebook({"cell_type": "code", "metadata": {}})), "cell 1 of the notebook: source is missing"),
    "a source that is a number": (text(notebook(code("1"), code(1))), "cell 2 of the notebook: source is neither"),
    "a cell of 11 MiB": (text(notebook(code("#" * (11 << 20)))), "cell 1 of the notebook: it is longer than 10485760 bytes"),
    "R": (text(kernel(code("1"), kernelspec={"name": "ir", "language": "R"})), 'its kernel is for "R"; "R" is not a'),
    "Julia": (text(kernel(language_info={"name": "julia"})), 'its kernel is for "julia"'),
    "bash": (text(kernel(kernelspec={"name": "bash", "display_name": "Bash"})), 'its kernel is for "bash"'),
}


def test_a_notebook_that_can_t_be_run_says_why(tmp_path):
    for name, (content, expected) in REFUSED.items():
        path = tmp_path / f"{name}.ipynb"
        path.write_bytes(content)
        finished = run(tmp_path, path, "--out", "new.ipynb")
        assert (finished.returncode, finished.stdout) == (125, ""), (name, finished)
        assert f"{name}.ipynb: " in finished.stderr and expected in finished.stderr, (name, finished)
        assert "panicked" not in finished.stderr and len(finished.stderr) < 1000, (name, finished)
    assert {path.suffix for path in tmp_path.iterdir() if path.is_file()} == {".ipynb", ".json"}
    assert not (tmp_path / "new.ipynb").exists()


MARKDOWN = {"cell_type": "markdown", "source": "![a](attachment:a.png)", "metadata": {}, "attachments": {"a.png": {"image/png": "cG5n"}}}
RAW = {"cell_type": "raw", "source": [], "metadata": {"format": "text/restructuredtext"}, "attachments": {}}
BARE = {"cell_type": "code", "metadata": {}, "source": ["print(", "6 * 7)"]}

# Each notebook, what its cells print, and whether it is valid as it is.
FINE = {
    "no cells": (notebook(), "", True),
    "only prose": (notebook(MARKDOWN, RAW), "", True),
    "only empty cells": (notebook(code(""), code([]), code("\n")), "", True),
    "prose between": (notebook(MARKDOWN, BARE, RAW), "42\n", False),
    "no kernel": (kernel(BARE, code("1")), "42\n1\n", False),
    "a kernel that is null": (kernel(code("1 + 1"), kernelspec=None, language_info={"name": "javascript"}), "2\n", False),
    "a kernel with only a name": (kernel(code("1"), kernelspec={"name": "python3", "display_name": "Python (own)"}), "1\n", True),
    "another name for Python": (kernel(code("1"), kernelspec={"name": "x", "display_name": "X"}, language_info={"name": "python"}), "1\n", True),
    "no ids": (notebook(code("1"), code("2"), minor=5), "1\n2\n", False),
    "the same id twice": (notebook(code("1", id="a"), code("2", id="a"), minor=5), "1\n2\n", False),
    "ids": (notebook(code("1", id="a"), {**MARKDOWN, "id": "b"}, minor=5), "1\n", True),
    "a minor version to come": (notebook(code("1", id="a", new=1), minor=99), "1\n", True),
    "nine MiB": (notebook(code("x = '" + "#" * (9 << 20) + "'\nlen(x)")), f"{9 << 20}\n", True),
    "tags": (
        notebook(
            code("1 / 0", metadata={"tags": ["raises-exception", "t"]}),
            code("print('no')", metadata={"tags": ["skip-execution"]}, outputs=[{"output_type": "stream", "name": "stdout", "text": "kept"}]),
            code("print('on')", metadata={"tags": "raises-exception"}),
        ),
        "on\n",
        False,
    ),
}


def test_an_odd_notebook_is_run_and_written_as_it_is_but_for_its_outputs(tmp_path):
    with server_in(tmp_path) as socket:
        for name, (given, expected, is_valid) in FINE.items():
            for prefix in [b"", BOM]:
                path = tmp_path / "in.ipynb"
                path.write_bytes(prefix + text(given))
                finished = run(tmp_path, path, "--out", "out.ipynb", "--server", socket)
                assert (finished.returncode, finished.stdout) == (0, expected), (name, finished)
                written = (executed if is_valid else read)(tmp_path / "out.ipynb")
                changed = {"outputs", "execution_count"}
                kept = [[{key: cell[key] for key in cell if key not in changed} for cell in it["cells"]] for it in (given, written)]
                assert kept[0] == kept[1], name
                assert {**written, "cells": 0} == {**given, "cells": 0}, name
        assert [bool(cell["outputs"]) for cell in written["cells"]] == [True, True, True], written


def read(path):
    """A notebook that is as invalid as it was, which Jupyter opens."""
    content = path.read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nbformat.reads(content, as_version=4)
    return json.loads(content)


SHOWN = """
class Odd:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {
            'application/x-tex': '$x$', 'image/gif': 'R0lG', 'image/webp': 'UklG', 'application/vnd.a.v1+json': {'a': [None]},
            'application/vnd.b+json; charset=utf-8': '{}', 'text/x-json': '[1]', 'application/json': 'no', '': 'e', 'none': 'n',
            5: 'five', 'text/html': ['a', 'b'], 'application/pdf': b'%PDF-1', 'audio/x': b'x', 'text/plain': 't', 'a\\nb/\\x00': '\\ud800',
        }
Odd()
"""


def test_odd_forms_are_written_as_jupyter_writes_them(tmp_path):
    picture = "from IPython.display import Image\nImage(b'GIF89a', format='gif')"
    path = write(tmp_path / "in.ipynb", notebook(code(SHOWN), code(picture)))
    finished = run(tmp_path, path, "--out", path)
    assert finished.returncode == 0, finished
    odd, gif = (cell["outputs"][0]["data"] for cell in executed(path)["cells"])
    expected = {"application/x-tex": "$x$", "image/gif": "R0lG", "image/webp": "UklG", "application/vnd.a.v1+json": {"a": [None]}}
    expected |= {"text/x-json": "[1]", "application/json": "no", "text/plain": "t", "application/pdf": "JVBERi0x"}
    assert {kind: odd[kind] for kind in expected} == expected, odd
    assert gif["image/gif"].strip() == "R0lGODlh", gif


def test_the_notebook_is_written_only_where_a_file_can_be(tmp_path):
    path = write(tmp_path / "in.ipynb", notebook(code("6 * 7")))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "gone").symlink_to("nowhere.ipynb")
    before = {path.name for path in tmp_path.iterdir()}
    for out, expected in [
        (".", "no file that can be replaced"),
        ("pipe", "no file that can be replaced"),
        ("-", "this is no file"),
        ("/dev/stdout", "this is no file"),
        ("/proc/self/fd/1", "this is no file"),
        ("gone", "a link to a file that is not there"),
        ("no/out.ipynb", "there is no folder no"),
        ("in.ipynb/out.ipynb", "there is no folder in.ipynb"),
        ("/sys/out.ipynb", "no permission"),
    ]:
        finished = run(tmp_path, path, "--out", out)
        assert (finished.returncode, finished.stdout) == (125, ""), (out, finished)
        assert f"--out {out}: " in finished.stderr and expected in finished.stderr, (out, finished)
    assert {path.name for path in tmp_path.iterdir()} - before <= {"isolator", "config.json"}
    # A link stays, and its file is replaced.
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder/out.ipynb", "old").chmod(0o600)
    (tmp_path / "link").symlink_to("folder/out.ipynb")
    assert run(tmp_path, path, "--out", "link").stdout == "42\n"
    assert (tmp_path / "link").is_symlink() and executed(tmp_path / "link")["cells"][0]["outputs"]
    assert (tmp_path / "folder/out.ipynb").stat().st_mode & 0o777 == 0o600


def test_a_notebook_is_no_cell_from_a_pipe(tmp_path):
    path = write(tmp_path / "in.ipynb", json.dumps(notebook(code("1"), code("# %%\n2")), indent=1))
    for named, expected in [([], "this is a notebook: save it under a name"), (["-"], "has to be a file"), (["/dev/stdin"], "has to be a file")]:
        with path.open() as content, nothing_left(tmp_path):
            options = {"cwd": tmp_path, "env": environment(tmp_path), "capture_output": True, "text": True, "timeout": PATIENCE_S}
            finished = subprocess.run(command(tmp_path, *named), stdin=content, **options)
        assert finished.returncode == 125 and expected in finished.stderr, (named, finished)


@contextmanager
def begun(folder, source, *arguments):
    """A notebook in whose first cell something runs, and which is to be written to itself."""
    path = write(folder / "in.ipynb", notebook(code("1", outputs=[]), code(source), code("print('late')")))
    starting = [*command(folder, path, "--out", path), *arguments]
    pipe = subprocess.PIPE
    with nothing_left(folder):
        with subprocess.Popen(starting, env=environment(folder), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as started:
            try:
                assert started.stdout.readline() == "1\n"
                assert started.stdout.readline() == "begun\n"
                yield started, path
            finally:
                started.kill()


ENDLESS = "import time\nprint('begun', flush=True)\n{}"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("while True: time.sleep(0.01)", "KeyboardInterrupt"),
        ("try:\n    time.sleep(99)\nexcept KeyboardInterrupt: print('caught')", None),
    ],
    ids=["ends the cell", "is caught"],
)
def test_ctrl_c_ends_the_run_and_what_has_run_is_written(tmp_path, body, error):
    with begun(tmp_path, ENDLESS.format(body), "--keep-going") as (started, path):
        started.send_signal(signal.SIGINT)
        out, said = started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 130 and "late" not in out, (out, said)
    assert "cell 2 was interrupted, and the cells after it were not run" in said, said
    first, interrupted, last = (cell["outputs"] for cell in executed(path)["cells"])
    assert first and interrupted[0]["text"].startswith("begun\n"), interrupted
    assert interrupted[-1].get("ename") == error and last == [], (interrupted, last)


def test_a_signal_that_ends_the_command_leaves_the_old_notebook(tmp_path):
    with begun(tmp_path, ENDLESS.format("while True: time.sleep(0.01)")) as (started, path):
        before = path.read_text()
        started.send_signal(signal.SIGTERM)
        started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 143 and path.read_text() == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
