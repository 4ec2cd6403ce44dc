"""The kernel of a Python session with IPython: the parts that are not IPython's own. tests/notebook compares the rest with Jupyter."""

import os
import threading

import pytest
from kernel import ended

pytestmark = pytest.mark.any_engine


def test_commands_print_into_the_streams_of_the_cell_in_order(runner):
    cell = ended(runner.run("print('first')\n!echo \"it's (\"\n!echo '\"' >&2\nprint('last')"))
    assert (cell.out, cell.err) == ("first\nit's (\nlast\n", '"\n')
    cell = ended(runner.run("files = !echo a.txt\nfor file in files:\n    !echo {file} $file $$HOME \\\n  more\nfiles"))
    assert cell.out.split()[:2] == ["a.txt", "a.txt"] and cell.out.endswith(" more\n") and cell.text == "['a.txt']"
    assert runner.run("!exit 3\n_exit_code").text == "3"
    assert ended(runner.run("!test -t 0 || cat")).out == ""


def test_commands_go_where_the_client_sends_its_output(runner):
    code = "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as seen:\n    !echo hi; echo err >&2\n"
    cell = ended(runner.run(code + "seen.getvalue()"))
    assert (cell.out, cell.err, cell.text) == ("", "err\n", r"'hi\n'")


def test_a_command_is_interrupted(runner):
    wait = runner.start("!echo begun; exec sleep 60")
    threading.Timer(1, runner.interrupt).start()
    cell = wait()
    assert (cell.how, cell.error, cell.out) == ("interrupted", "KeyboardInterrupt", "begun\n")
    assert ended(runner.run("!echo on")).out == "on\n"


def test_numbers_of_cells_are_those_of_the_session(runner):
    runner.run("'one'")
    # Cells of others count, too.
    runner.number += 2
    cell = ended(runner.run("_1, In[1], In[2], len(In)"))
    assert cell.text == """('one', "'one'", '', 5)"""
    assert "Cell In[5], line 1\n    1 / 0\n" in runner.run("1 / 0").err


def test_history_is_in_memory_and_undone_with_cells(runner):
    runner.run("x = 1")
    runner.run("y = 2", checkpoint=True)
    assert ended(runner.run("%history -n", checkpoint=True)).out == "   1: x = 1\n   2: y = 2\n   3: %history -n\n"
    runner.undo()
    runner.undo()
    runner.number -= 2
    assert ended(runner.run("%history -g x")).out == "   1: x = 1\n   2: %history -g x\n"


def test_nothing_is_written_to_the_home(runner, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    ended(runner.run(f"import os\nos.environ['HOME'] = {str(home)!r}"))
    ended(runner.run("kept = [1]\n%store kept\n%bookmark here\n%alias hello echo hello\n%rehashx"))
    assert ended(runner.run("del kept\n%store -r kept\nkept")).text == "[1]"
    assert ended(runner.run("%cd -b here\n%history -o -p")).out != ""
    assert list(home.iterdir()) == []


def test_magics_leave_no_thread(runner):
    ended(runner.run("%%bash\necho hi"))
    ended(runner.run("%%python3\nprint(1)", checkpoint=True))
    assert ended(runner.run("%timeit -n 1 -r 1 1", checkpoint=True)).checkpoint
    assert runner.run("import threading; threading.active_count()").text == "1"


def test_programs_of_run_end_as_programs_do(runner, tmp_path):
    (tmp_path / "end.py").write_text("e = 1\nimport sys\nsys.exit(int(sys.argv[1]))")
    assert ended(runner.run("%run end.py 0\ne")).text == "1"
    assert "SystemExit: 3" in runner.run("%run end.py 3").err
    (tmp_path / "fails.py").write_text("def f():\n    return 1 / 0\nf()")
    cell = runner.run("%run fails.py")
    assert "fails.py:2 in f\n    return 1 / 0\n" in cell.err and "session/" not in cell.err
    assert runner.run("__name__, '__file__' in globals()").text == "('__main__', False)"


def test_what_needs_a_user_says_so(runner, tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    runner.run("1 / 0")
    for code in ["%debug", "%pdb on\n1 / 0"]:
        assert "No user can answer a debugger here." in runner.run(code).err
    ended(runner.run("%pdb off"))
    assert runner.run("%edit").error == "UsageError: there is no editor here; %%writefile writes a file"
    assert ended(runner.run("%load a.py")).out == "# %load a.py\nx = 1\n\n"
    assert runner.run("input()").error == "EOFError: EOF when reading a line"
    ended(runner.run("%reset"))
    assert ended(runner.run("%save a 1\n%save a 1")).out.endswith("Use `%save -f a 1` to force overwrite\n")


def test_errors_of_magics_end_the_cell(runner):
    for code, error in [
        ("%sql select 1", "UsageError: Line magic function `%sql` not found."),
        ("%%sql\n<b>", "UsageError: Cell magic `%%sql` not found."),
        ("%%bash\nexit 3", "CalledProcessError: Command 'b'exit 3\\n'' returned non-zero exit status 3."),
    ]:
        cell = runner.run(code)
        assert (cell.how, cell.error) == ("failed", error)
        assert "session/" not in cell.err


def test_only_lines_that_are_not_python_are_rewritten(runner):
    code = "text = '''\n!ls\n%pwd\n%%bash\nx?\n'''\nn = (7\n%4)\nn, text"
    assert runner.run(code).text == "(3, '\\n!ls\\n%pwd\\n%%bash\\nx?\\n')"
    cell = ended(runner.run("text = '''\n!ls\n'''\n!echo one\ntext"))
    assert (cell.out, cell.text) == ("one\n", "'\\n!ls\\n'")


def test_a_cell_that_is_indented_as_a_whole(runner):
    cell = ended(runner.run("    # first\n\n    def f():\n        return 5\n    !echo hi\n    f()"))
    assert (cell.out, cell.text) == ("hi\n", "5")
    assert runner.run("\tx = 5\n\tx").text == "5"
    assert runner.run("  x = 1\n    y = 2").error.startswith("IndentationError: unexpected indent")


def test_files_of_cells_come_from_the_working_directory(runner, tmp_path):
    assert ended(runner.run("%%file a.py\nimport sys\nb = sys.argv[1:]")).out == "Writing a.py\n"
    assert (tmp_path / "a.py").read_text() == "import sys\nb = sys.argv[1:]\n"
    assert ended(runner.run("%run a.py 1 'x y'\nb")).text == "['1', 'x y']"
    (tmp_path / "sub").mkdir()
    assert ended(runner.run("%cd sub\n%pwd")).text == repr(str(tmp_path / "sub"))
    assert runner.run("import os; os.getcwd()").text == repr(str(tmp_path / "sub"))


CAPTURED = """import os, sys
print('out')
sys.stderr.write('err')
display({'text/html': '<b>'}, raw=True)
5"""


def test_captured_cells_show_nothing(runner):
    cell = ended(runner.run(f"%%capture seen\n%%time\n{CAPTURED}"))
    assert (cell.out, cell.err, cell.shown, cell.value) == ("", "", [], None)
    assert runner.run("'Wall time' in seen.stdout, seen.stderr, len(seen.outputs)").text == "(True, 'err', 2)"
    cell = ended(runner.run("seen()"))
    assert (cell.err, cell.order) == ("err", [{"text/plain": b"", "text/html": b"<b>"}, {"text/plain": b"5"}])
    before = runner.run("len(os.listdir('/proc/self/fd'))").text
    cell = runner.run("%%capture seen\nprint('before')\n1 / 0")
    assert (cell.out, cell.err.count("ZeroDivisionError")) == ("", 1)
    assert runner.run("print(seen.stdout)\nlen(os.listdir('/proc/self/fd'))").out == "before\n\n"
    assert runner.run("len(os.listdir('/proc/self/fd'))").text == before


def test_variables_of_the_environment_reach_commands(runner):
    assert ended(runner.run("%env EXAMPLE=5\n!echo $EXAMPLE")).out == "env: EXAMPLE=5\n5\n"
    assert "EXAMPLE" not in os.environ


def test_a_program_that_fails_makes_its_cell_fail_at_the_end(runner, tmp_path):
    (tmp_path / "fails.py").write_text("1 / 0")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)")
    for code in ["%run fails.py", "%run -m fails", "%%capture\n1 / 0", "if True:\n    %run fails.py"]:
        cell = runner.run(f"{code}\nprint('went on')")
        assert cell.how == "failed", code
        assert cell.err.count("\nZeroDivisionError: division by zero\n") == 1
        assert cell.out == ("" if "capture" in code else "went on\n")
    assert (cell := runner.run("%run leaves.py")).code == 3 and cell.how == "exited"
    # What only shows an error is a success.
    for code in ["%tb", "%run -e leaves.py", "try:\n    1 / 0\nexcept Exception:\n    get_ipython().showtraceback()", "get_ipython().run_cell('1 / 0')"]:
        assert runner.run(code).how == "ended", code


def test_a_function_of_the_client_chooses_what_an_error_shows(runner):
    hide = "ip = get_ipython()\ndef short(*_, **more):\n    import sys\n    kind, error, _ = sys.exc_info()\n"
    ended(runner.run(hide + "    return ip._showtraceback(kind, error, ip.InteractiveTB.get_exception_only(kind, error))\nip.showtraceback = short"))
    cell = runner.run("def f():\n    return 1 / 0\nf()")
    assert (cell.how, cell.err, cell.out) == ("failed", "ZeroDivisionError: division by zero\n", "")


@pytest.mark.parametrize("code", ["breakpoint()", "import pdb\npdb.set_trace()"])
def test_a_debugger_is_not_waited_for(runner, code):
    cell = ended(runner.run(f"{code}\nprint('went on')"))
    assert (cell.out, cell.err.startswith("No user can answer a debugger here.")) == ("went on\n", True)
