"""The kernel of a Python session in an image without IPython, or with one that does not work. It needs no engine."""

import pytest
from kernel import Runner, ended

pytestmark = pytest.mark.any_engine

BROKEN = {
    "none": ("raise ImportError('there is none')", ""),
    "another": ("", "class InteractiveShell: ...\n"),
}


def without(tmp_path, package, core, **options):
    """A runner whose Python finds another package instead of IPython."""
    folder = tmp_path / "site/IPython/core"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text(package)
    (folder / "__init__.py").write_text("")
    (folder / "interactiveshell.py").write_text(core)
    (tmp_path / "work").mkdir()
    return Runner(tmp_path / "work", {"PYTHONPATH": str(tmp_path / "site")}, **options)


@pytest.fixture(params=BROKEN)
def plain(request, tmp_path):
    runner = without(tmp_path, *BROKEN[request.param])
    first = ended(runner.run("x = 1"))
    assert first.err == "" or first.err.startswith("Note: the IPython of this image can't run sessions (ModuleNotFoundError: ")
    assert (first.err == "") == (request.param == "none")
    try:
        yield runner
    finally:
        assert runner.close() == 0


def test_python_runs(plain):
    assert ended(plain.run("import asyncio\nx += await asyncio.sleep(0, 1)\nx", checkpoint=True)).text == "2"
    plain.undo()
    assert ended(plain.run("print(x)\n_2 if '_2' in globals() else 'undone'")).text == "'undone'"
    assert ended(plain.run("5;")).value is None
    cell = ended(plain.run("display({'text/html': '<b>'}, raw=True)\n[1, 2]"))
    assert (cell.shown, cell.text) == ([{"text/plain": b"", "text/html": b"<b>"}], "[1, 2]")
    assert plain.run("_").text == "[1, 2]"


def test_errors_are_those_of_python(plain):
    cell = plain.run("def f():\n    return 1 / 0\nf()")
    assert (cell.how, cell.error) == ("failed", "ZeroDivisionError: division by zero")
    assert '  File "<cell 2>", line 2, in f\n    return 1 / 0\n' in cell.err and "session/" not in cell.err
    cell = plain.run("x = = 1")
    assert cell.error == "SyntaxError: invalid syntax" and '  File "<cell 3>", line 1\n' in cell.err


@pytest.mark.parametrize("code", ["%time 5", "!ls", "x = 1\n%%bash\nls", "x?"])
def test_what_only_ipython_understands_is_refused_with_the_reason(plain, code):
    cell = plain.run(code)
    assert cell.how == "failed" and cell.error.startswith("UsageError: ") and "needs IPython" in cell.error
    assert plain.run("x").text == "1"
