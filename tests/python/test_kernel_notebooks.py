"""The kernel of a Python session: what notebooks write that is no Python. It needs no engine."""

import os
import sys

import pytest
from kernel import ended

pytestmark = pytest.mark.any_engine


def test_commands_of_the_shell(runner, tmp_path):
    (tmp_path / "a.txt").write_text("x")
    assert ended(runner.run("!ls")).out == "a.txt\n"
    cell = ended(runner.run("files = !ls\nfor file in files:\n    !echo {file} $file $$HOME \\\n  more\nfiles"))
    assert (cell.out, cell.text) == (f"a.txt a.txt {os.environ['HOME']} more\n", "['a.txt']")
    cell = ended(runner.run("print('first')\n!echo \"it's (\"\n!echo '\"' >&2\nprint('last')"))
    assert (cell.out, cell.err) == ("first\nit's (\nlast\n", '"\n')
    assert runner.run("!exit 3\n_exit_code").text == "3"
    assert runner.run("def f():\n    n = 5\n    out = !echo {n}\n    return out\nf()").text == "['5']"
    assert runner.run("x = 5\nx != 3, x % 3").text == "(True, 2)"


def test_magics(runner, tmp_path):
    for code in ["%matplotlib inline", "%config InlineBackend.figure_format = 'svg'", "%load_ext autoreload\n%autoreload 2\nx = 1"]:
        assert ended(runner.run(code)).out == ""
    cell = ended(runner.run("%time y = x + 1\n%time y"))
    assert (cell.text, cell.out.count("Wall time: ")) == ("2", 2)
    cell = ended(runner.run("%%time\nz = 3\nz"))
    assert (cell.text, cell.out.count("Wall time: ")) == ("3", 1)
    assert "per loop (mean \u00b1 std. dev. of 2 runs, 10 loops each)" in ended(runner.run("%timeit -n 10 -r 2 x + 1")).out
    assert "per loop" in ended(runner.run("%%timeit -n 10 -r 2\nx + 1")).out
    assert runner.run("%pwd").text == repr(str(tmp_path))
    assert ended(runner.run("%%writefile a.py\nb = 5")).out == "Writing a.py\n"
    assert (tmp_path / "a.py").read_text() == "b = 5\n"
    assert ended(runner.run("import a\na.b")).text == "5"
    assert ended(runner.run("%ls")).out.split() == ["a.py"]
    assert ended(runner.run("%%bash\nfor i in 1 2; do\n  echo $i\ndone")).out == "1\n2\n"
    assert runner.run("%%sh\nexit 3").error.startswith("subprocess.CalledProcessError: ")
    assert ended(runner.run("%env A=5\n!echo $A")).out == "env: A=5\n5\n"
    assert ended(runner.run("%who")).out == "x  y  z\n"
    assert ended(runner.run("%whos")).out.splitlines()[1].split() == ["x", "int", "1"]
    assert "%pwd\n%%writefile a.py" in ended(runner.run("%history")).out
    runner.run("%reset -f")
    assert runner.run("x").error == "NameError: name 'x' is not defined"
    assert runner.run("6").text == "6"
    (tmp_path / "sub").mkdir()
    assert ended(runner.run("%cd sub")).out == f"{tmp_path}/sub\n"


def test_other_magics_say_what_there_is(runner):
    for code in ["%sql select 1", "%%sql\n<b>", "%%matplotlib inline\nx = 1"]:
        cell = runner.run(code)
        assert cell.error.startswith(f"UsageError: there is no magic {code.split()[0]} here. There are: %%bash ")
        assert "session/" not in cell.err


@pytest.mark.parametrize(
    "code",
    [
        "%pip install nothing-like-it",
        "!pip install -q nothing-like-it",
        "!apt-get install -y nothing-like-it",
        "%conda install nothing-like-it",
        "!python3 -m pip install nothing-like-it==1.0",
        "%%bash\npip install nothing-like-it",
    ],
)
def test_nothing_can_be_installed(runner, code):
    cell = runner.run(code)
    assert cell.error.startswith("UsageError: nothing-like-it can't be installed: there is no network here")


def test_installed_packages_need_no_installation(runner, tmp_path):
    (tmp_path / "there-1.0.dist-info").mkdir()
    (tmp_path / "there-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: there\nVersion: 1.0\n")
    assert ended(runner.run("!pip install there\n%pip install -q 'there>=1'")).out == "Already there: there\n" * 2
    assert runner.run("!pip install there nothing-like-it").error.startswith("UsageError: nothing-like-it can't")


def test_help(runner):
    runner.run("def f(a, b=1):\n    '''Does that.'''\nx = 5")
    assert ended(runner.run("f?")).out == "Signature: f(a, b=1)\nDocstring: Does that.\n"
    assert "Value: 5\n" in ended(runner.run("?x")).out
    assert ended(runner.run("missing?")).out == "Object `missing` not found.\n"


def test_only_lines_that_are_not_python_are_rewritten(runner):
    code = "text = '''\n!ls\n%pwd\n%%bash\nx?\n'''\nn = (7\n%4)\nn, text"
    assert runner.run(code).text == "(3, '\\n!ls\\n%pwd\\n%%bash\\nx?\\n')"
    code = "text = '''\n!ls\n'''\n!echo one\ntext"
    cell = ended(runner.run(code))
    assert (cell.out, cell.text) == ("one\n", "'\\n!ls\\n'")


def test_errors_beside_idioms_are_those_of_python(runner):
    cell = runner.run("!echo hi\nx = = 1")
    assert (cell.error, cell.out) == ("SyntaxError: invalid syntax (<cell 1>, line 2)", "")
    cell = runner.run("!echo hi\n1 / 0")
    assert '  File "<cell 2>", line 2, in <module>\n    1 / 0\n' in cell.err


def test_bare_magics(runner, tmp_path):
    (tmp_path / "sub").mkdir()
    assert "per loop" in ended(runner.run("timeit -n 10 -r 2 sum([1])")).out
    cell = ended(runner.run("import time\nx = 1\ntime sum([x, 1])"))
    assert (cell.text, cell.out.count("Wall time: ")) == ("2", 1)
    assert runner.run("pip install nothing-like-it").error.startswith("UsageError: nothing-like-it can't be installed")
    assert ended(runner.run("if x:\n    cd sub")).out == f"{tmp_path}/sub\n"
    for code in ["time = = 5", "what is it", "timeit"]:
        assert runner.run(code).error.startswith(("SyntaxError: ", "NameError: "))
    # The line above the error is text, and stays what it is.
    assert runner.run("x = '''\ntime sum([1])\n'''\ny = = 1").error == "SyntaxError: invalid syntax (<cell 8>, line 4)"
    assert ended(runner.run("x = '''\n!ls\n'''\ntimeit -n 1 -r 1 x\nx")).text == "'\\n!ls\\n'"


def test_a_cell_that_is_indented_as_a_whole(runner):
    cell = ended(runner.run("    # first\n\n    def f():\n        return '''a\n    b'''\n    !echo hi\n    f()"))
    assert (cell.out, cell.text) == ("hi\n", "'a\\nb'")
    assert runner.run("\tx = 5\n\tx").text == "5"
    assert "Wall time: " in ended(runner.run("    %%time\n    x = 6")).out
    cell = runner.run("  def g():\n    return 1 / 0\n  g()")
    assert '  File "<cell 4>", line 3, in <module>\n    g()\n' in cell.err and "line 2, in g\n    return 1 / 0\n" in cell.err
    assert runner.run("  x = 1\n    y = 2").error == "IndentationError: unexpected indent (<cell 5>, line 2)"
    assert runner.run("  x = 1\n  y = = 2").error == "SyntaxError: invalid syntax (<cell 6>, line 2)"
    assert runner.run("x = 1\n    y = 2").error == "IndentationError: unexpected indent (<cell 7>, line 2)"


def test_a_cell_with_the_prompts_of_python(runner):
    assert ended(runner.run(">>> def f():\n...     return 5\n...\n>>> f()")).text == "5"


def test_files(runner, tmp_path):
    assert ended(runner.run("%%file a.py\nimport sys\nb = sys.argv[1:]\nc = __name__, __file__")).out == "Writing a.py\n"
    assert ended(runner.run("# Once more.\n%%file -a a.py\nd = d + 1 if 'd' in globals() else 0")).out == "Appending to a.py\n"
    assert ended(runner.run("%run a.py 1 'x y'\nb, c, d, sys.argv, __name__")).text == (
        "(['1', 'x y'], ('__main__', 'a.py'), 0, [''], '__main__')"
    )
    assert runner.run("%run -i a.py\nd").text == "1"
    assert runner.run("run a\nb, d").text == "([], 0)"
    assert "b = sys.argv[1:]\n" in ended(runner.run("%load a.py")).out
    assert ended(runner.run("%cat a.py")).out == (tmp_path / "a.py").read_text()
    (tmp_path / "end.py").write_text("e = 1\nimport sys\nsys.exit(int(sys.argv[1]))")
    assert ended(runner.run("%run end.py 0\ne")).text == "1"
    cell = runner.run("%run end.py 3")
    assert (cell.how, cell.code) == ("exited", 3)
    (tmp_path / "fails.py").write_text("def f():\n    return 1 / 0\nf()")
    cell = runner.run("%run fails.py")
    assert cell.error == "ZeroDivisionError: division by zero"
    assert 'File "fails.py", line 2, in f\n    return 1 / 0\n' in cell.err and "session/" not in cell.err
    for code in ["%run", "%load", "%run other.ipynb", "%%script"]:
        assert runner.run(code).error.startswith("UsageError: ")
    assert runner.run("%run missing.py").error == "FileNotFoundError: [Errno 2] No such file or directory: 'missing.py'"
    assert runner.run("__name__, sys.modules['__main__'].__dict__ is globals(), sys.argv").text == "('__main__', True, [''])"


def test_cells_show_values_by_their_kind(runner):
    assert ended(runner.run("%%html\n<b>\n")).shown == [{"text/plain": b"", "text/html": b"<b>\n"}]
    assert ended(runner.run("%%markdown\n*b*")).shown == [{"text/plain": b"", "text/markdown": b"*b*"}]
    cell = ended(runner.run("%%javascript\nalert(1)"))
    assert (cell.out, cell.shown) == ("There is no browser here: the script does not run.\n", [])


def test_programs_get_cells(runner):
    assert ended(runner.run("%%python3\nimport sys\nprint(sys.argv)")).out == "['-']\n"
    assert ended(runner.run("%%script cat -n\na")).out.split() == ["1", "a"]
    assert ended(runner.run("%%script false --no-raise-error\nlong()")).out == ""
    assert runner.run("%%script false\nlong()").error.startswith("subprocess.CalledProcessError: ")


CAPTURED = """import os, sys
print('out')
os.system('echo child')
sys.stderr.write('err')
display({'text/html': '<b>'}, raw=True)
5"""


def test_captured_cells(runner):
    cell = ended(runner.run(f"%%capture seen\n%%time\n{CAPTURED}"))
    assert (cell.out, cell.err, cell.shown, cell.value) == ("", "", [], None)
    assert "out" in runner.run("seen.stdout").text and "child" in runner.run("str(seen)").text
    assert runner.run("'Wall time' in seen.stdout, seen.stderr, len(seen.outputs), seen.outputs[-1]").text == (
        "(True, 'err', 2, {'text/plain': '5'})"
    )
    cell = ended(runner.run("seen()"))
    assert ("child\n" in cell.out, cell.err, cell.shown) == (
        True,
        "err",
        [{"text/plain": b"", "text/html": b"<b>"}, {"text/plain": b"5"}],
    )
    cell = ended(runner.run(f"%%capture --no-stdout --no-display\n{CAPTURED}"))
    assert (sorted(cell.out.split()), cell.err, cell.text) == (["child", "out"], "", "5")
    before = runner.run("len(os.listdir('/proc/self/fd'))").text
    cell = runner.run("%%capture seen\nprint('before')\n1 / 0")
    assert (cell.error, cell.out) == ("ZeroDivisionError: division by zero", "")
    assert cell.err.endswith("ZeroDivisionError: division by zero\n")
    assert runner.run("print(seen.stdout)\nlen(os.listdir('/proc/self/fd'))").out == "before\n\n"
    assert runner.run("len(os.listdir('/proc/self/fd'))").text == before


def test_numbers_have_the_precision_that_was_asked_for(runner):
    assert runner.run("%precision 3").text == "'%.3f'"
    assert runner.run("1 / 3, [2.0], 7").text == "(0.333, [2.000], 7)"
    assert runner.run("%precision %.1e\n1 / 3").text == "3.3e-01"
    assert runner.run("%precision a\n1 / 3").error.startswith("UsageError: %precision needs")
    assert ended(runner.run("%precision\n1 / 4")).text == "0.25"


def test_a_debugger_gets_no_input(runner):
    assert runner.run("%tb").error == "UsageError: there was no error yet"
    runner.run("1 / 0")
    for code in ["%debug", "%pdb on"]:
        assert ended(runner.run(code)).out.startswith("No user can answer a debugger here.")
    assert '  File "<cell 2>", line 1, in <module>\n    1 / 0\n' in ended(runner.run("%tb")).err
    assert ended(runner.run("%xmode Verbose")).out == "Errors are always printed as Python prints them.\n"


def test_the_list_of_magics_is_complete(runner):
    ended(runner.run("def f(a):\n    '''Does that.'''"))
    assert ended(runner.run("f??")).out == "Signature: f(a)\nSource:\ndef f(a):\n    '''Does that.'''\n"
    assert runner.run("%who_ls").text == "['f']"
    assert "%%capture " in ended(runner.run("%lsmagic")).out
    assert ended(runner.run("%matplotlib\n%gui\n%cd -q .")).out == ""
