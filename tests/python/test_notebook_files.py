"""`isolator session` with files: a notebook, which is written with its outputs, and a program with cells."""

import json
import stat
import subprocess

import nbformat
import pytest
from server import environment
from test_session_command import ONE_PIXEL, PATIENCE_S, PICTURE, command, lines, nothing_left, server_in

pytestmark = pytest.mark.only_on("embedded")


def run(folder, *arguments):
    with nothing_left(folder):
        return subprocess.run(
            command(folder, *map(str, arguments)),
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )


def code(source, **fields):
    return {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": None, **fields}


def notebook(*cells, language="python", minor=4, **metadata):
    kernel = {"kernelspec": {"name": "a", "display_name": "A", "language": language}}
    return {"cells": list(cells), "metadata": {**kernel, **metadata}, "nbformat": 4, "nbformat_minor": minor}


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def executed(path):
    """The notebook that was written, which has to be a valid one. Texts of its outputs are put together from their lines."""
    read = json.loads(path.read_text())
    nbformat.validate(read)
    for output in (output for cell in read["cells"] for output in cell.get("outputs", [])):
        for texts in (output, output.get("data", {})):
            lines = {kind: value for kind, value in texts.items() if kind.startswith("text") and isinstance(value, list)}
            texts.update({kind: "".join(value) for kind, value in lines.items()})
    return read


def test_a_notebook_is_written_with_its_outputs(tmp_path):
    prose = {"cell_type": "markdown", "source": ["# A\n", "b"], "metadata": {"own": [1.50]}}
    raw = {"cell_type": "raw", "source": "r", "metadata": {"format": "text/x"}}
    streams = "import sys\nprint('a'); sys.stdout.flush(); print('b', file=sys.stderr); sys.stderr.flush(); print('c')"
    shown = ["from IPython.display import display, JSON\n", "display(JSON({'a': [1]}))\n", PICTURE, "Picture()"]
    listed = code("[{'a': 1}]")
    old = code("open('data.txt').read()", outputs=[{"output_type": "stream", "name": "stdout", "text": "old"}])
    source = notebook(prose, code(streams), raw, code(" "), code(shown, metadata={"tags": ["t"]}), old, listed, own={"x": None})
    write(tmp_path / "data.txt", "here")
    path = write(tmp_path / "in.ipynb", source)
    finished = run(tmp_path, path, "--out", "out.ipynb", "--file", "data.txt")
    assert finished.returncode == 0, finished
    assert finished.stdout.startswith("a\nc\n") and "'here'" in finished.stdout, finished
    assert "isolator: cell 1 of 4\nb\n" in finished.stderr and "cell 4 of 4" in finished.stderr, finished
    assert json.loads(path.read_text()) == source
    written = executed(tmp_path / "out.ipynb")
    assert (written["nbformat_minor"], written["metadata"]) == (4, source["metadata"])
    assert [written["cells"][at] for at in (0, 2, 3)] == [prose, raw, source["cells"][3]]
    cells = [written["cells"][at] for at in (1, 4, 5)]
    assert [cell["execution_count"] for cell in cells] == [1, 2, 3]
    assert cells[1]["metadata"] == {"tags": ["t"]} and cells[1]["source"] == shown
    texts = [(output["name"], output["text"]) for output in cells[0]["outputs"]]
    assert "".join(text for name, text in texts if name == "stdout") == "a\nc\n", texts
    assert ("stderr", "b\n") in texts, texts
    displayed, picture = cells[1]["outputs"]
    assert displayed["output_type"] == "display_data" and displayed["data"]["application/json"] == {"a": [1]}
    assert (picture["output_type"], picture["execution_count"]) == ("execute_result", 2)
    assert picture["data"]["image/png"].strip() == ONE_PIXEL
    assert [output["data"]["text/plain"] for output in cells[2]["outputs"]] == ["'here'"]
    assert written["cells"][6]["outputs"][0]["data"] == {"text/plain": "[{'a': 1}]"}


def test_a_cell_that_fails_ends_the_run_and_is_an_error_in_the_notebook(tmp_path):
    left = code("print('late')", outputs=[{"output_type": "stream", "name": "stdout", "text": "old"}], execution_count=9)
    path = write(tmp_path / "in.ipynb", notebook(code("x = 1"), code("print(x); 1 / 0"), left))
    path.chmod(0o640)
    finished = run(tmp_path, path, "--out", path)
    assert (finished.returncode, finished.stdout) == (1, "1\n"), finished
    assert "ZeroDivisionError: division by zero\n" in finished.stderr, finished
    assert "cell 2 failed, and the cells after it were not run" in finished.stderr, finished
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    _, failed, last = executed(path)["cells"]
    printed, error = failed["outputs"]
    assert (printed["text"], failed["execution_count"]) == ("1\n", 2)
    assert (error["output_type"], error["ename"], error["evalue"]) == ("error", "ZeroDivisionError", "division by zero")
    assert error["traceback"][0].startswith("Traceback") and "1 / 0" in "\n".join(error["traceback"])
    assert (last["outputs"], last["execution_count"]) == ([], None)

    went_on = run(tmp_path, path, "--out", path, "--keep-going", "--json")
    assert went_on.returncode == 1 and went_on.stderr == "", went_on
    assert [line["status"] for line in lines(went_on)] == ["success", "error", "success"], went_on
    assert "ZeroDivisionError" in lines(went_on)[1]["stderr"] and "shown" not in lines(went_on)[1], went_on
    assert executed(path)["cells"][2]["outputs"][0]["text"] == "late\n"


def test_cells_that_hang_or_exit_have_an_end_in_the_notebook(tmp_path):
    path = write(tmp_path / "in.ipynb", notebook(code("while True: pass"), code("exit(3)"), code("1")))
    finished = run(tmp_path, path, "--out", "out.ipynb", "--timeout", "1", "--keep-going")
    assert finished.returncode == 124, finished
    hung, left, last = (cell["outputs"] for cell in executed(tmp_path / "out.ipynb")["cells"])
    assert (hung[-1]["ename"], left[-1]["ename"]) == ("timeout", "SystemExit"), (hung, left)
    assert last[0]["data"]["text/plain"] == "1"
    ended = run(tmp_path, write(path, notebook(code("exit(0)"), code("1"))))
    assert (ended.returncode, ended.stdout) == (0, ""), ended
    assert "cell 1 asked to exit, so the cells after it were not run" in ended.stderr, ended


def test_a_notebook_of_jupyter_changes_only_in_its_outputs(tmp_path):
    prose = {"cell_type": "markdown", "source": "# A\nb", "metadata": {"tags": ["é", 1.5]}}
    shown = "from IPython.display import SVG, display\ndisplay(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))\nprint('a\\nb')\n{}"
    source = nbformat.from_dict(notebook(prose, code(shown), code("1 / 0")))
    path = write(tmp_path / "in.ipynb", nbformat.writes(source) + "\n")
    assert run(tmp_path, path, "--out", path).returncode == 1
    written = path.read_text()
    assert written.count("outputs") == 2 and '"a\\n"' in written and "svg+xml" in written, written
    assert written == nbformat.writes(nbformat.reads(written, as_version=4)) + "\n"


def test_a_notebook_of_javascript_runs_in_its_language(tmp_path):
    cells = code("let x = 1"), code("x + 1"), code("throw new TypeError('no')")
    path = write(tmp_path / "in.ipynb", notebook(*cells, language="javascript", minor=2))
    finished = run(tmp_path, path, "--out", "out.ipynb")
    assert finished.returncode == 1 and "TypeError: no" in finished.stderr, finished
    written = executed(tmp_path / "out.ipynb")
    assert written["cells"][1]["outputs"][0]["data"]["text/plain"] == "2"
    assert written["cells"][2]["outputs"][-1]["ename"] == "TypeError"


def test_a_notebook_runs_in_a_server(tmp_path):
    path = write(tmp_path / "in.ipynb", notebook(code("x = 1"), code("print(x); x.y")))
    with server_in(tmp_path) as socket:
        finished = run(tmp_path, path, "--out", path, "--server", socket, "--quiet")
    assert (finished.returncode, finished.stdout) == (1, "1\n"), finished
    assert [output.get("ename") for output in executed(path)["cells"][1]["outputs"]] == [None, "AttributeError"]


def test_programs_with_cells_are_run_cell_by_cell(tmp_path):
    write(tmp_path / "cells.py", "x = 1\nx\n# %% [markdown]\n# prose\n# %%\nx + 1\n# %%\n1 / 0\n# %%\n3\n")
    finished = run(tmp_path, "cells.py")
    assert (finished.returncode, finished.stdout) == (1, "1\n2\n"), finished
    assert "cell 3 failed, and the cells after it were not run" in finished.stderr, finished
    write(tmp_path / "plain.ts", "const x: number = 1\nx + 1\n")
    whole = run(tmp_path, "plain.ts")
    assert (whole.returncode, whole.stdout, whole.stderr) == (0, "2\n", ""), whole


def test_what_can_t_be_run_is_refused_before_anything_is_written(tmp_path):
    write(tmp_path / "deep.ipynb", '{"cells": ' + "[" * 100_000)
    write(tmp_path / "old.ipynb", {"worksheets": [], "nbformat": 3})
    write(tmp_path / "cell.ipynb", notebook(code("1"), {"cell_type": "code"}))
    write(tmp_path / "r.ipynb", notebook(code("1"), language="R"))
    (tmp_path / "a.py").write_bytes(b"\xff\n")
    before = {path.name for path in tmp_path.iterdir()}
    for arguments, expected in [
        (["deep.ipynb", "--out", "new"], "deep.ipynb: this is not the JSON of a notebook"),
        (["old.ipynb", "--out", "new"], "version 3 of the format"),
        (["cell.ipynb", "--out", "new"], "cell 2 of the notebook: source is missing"),
        (["r.ipynb", "--out", "new"], 'its kernel is for "R"'),
        (["gone.ipynb"], "gone.ipynb: there is no such file"),
        (["gone.py"], "gone.py: there is no such file"),
        (["a.py"], "a.py: this is not text in UTF-8"),
        (["a.py", "--out", "new"], "--out writes a notebook that was run"),
        (["r.ipynb", "--out", "no/new"], "--out no/new: there is no folder no"),
    ]:
        finished = run(tmp_path, *arguments)
        assert finished.returncode == 125 and expected in finished.stderr, (arguments, finished)
        assert finished.stdout == "", finished
    after = {path.name for path in tmp_path.iterdir()}
    assert not any(name.startswith((".", "new")) for name in after - before), after
