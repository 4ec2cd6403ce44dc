"""Modules in a Python session: no file of the workspace replaces what IPython, the kernel or the standard library imports."""

import ast

import pytest
from kernel import ended

pytestmark = pytest.mark.any_engine

# A cell for each part of IPython that imports something when it is first used.
CELLS = """
%alias_magic t time
%autocall
%bookmark a
%cd .
%config
%debug
%dhist
%doctest_mode
%doctest_mode
%edit
%env
%gui
%history -o
%load program.py
%load_ext autoreload
%logstart
%logstop
%lsmagic
%macro m 1
%magic
%matplotlib inline
%notebook out.ipynb
%page x
%pastebin 1
%pdef open
%pdoc open
%pfile json.dumps
%pinfo2 os.path.join
%pip --version
%pprint
%precision 3
%prun -q 1
%psearch o*
%quickref
%rehashx
%rerun
%run program.py
%run -p program.py
%run -d program.py
%run -t program.py
%run -m program
%run missing.py
%save -f s.py 1
%sc l = ls
%store
%sx ls
%tb
%time 1
%timeit -n1 -r1 1
%whos
%xmode Context
1 / 0
%xmode Verbose
1 / 0
%xmode Plain
%%bash\necho 1
%%bash --bg\necho 1
%%capture\n1
%%code_wrap --list
%%html\n<b>
%%latex\nx
%%prun\n1
%%python3\nprint(1)
%%time\n1
%%writefile f.txt\nx
open??
os.path.join??
*int*?
!ls
display(5)
from IPython.display import *\nHTML('<table><tr><td>1')
Audio([1.0, 2.0], rate=8000)
Code('x = 1', language='python')
Image(data=b'\\x89PNG\\r\\n\\x1a\\n' + b'\\0' * 30)
SVG('<svg/>')
YouTubeVideo('x')
JSON({})
async def f(): return 1\nawait f()
raise ExceptionGroup('g', [ValueError(1)])
x = = 1
1 + '\\u4e2d'
print('\\N{BULLET}')
input()
breakpoint()
get_ipython().complete('op')
get_ipython().Completer.complete('\\\\\\\\alpha')
get_ipython().mktempfile('x')
get_ipython().show_usage()
exit
"""
# It tells who has imported it.
FILE = """
import sys
frame, files = sys._getframe(1), []
while frame:
    files.append(frame.f_code.co_filename)
    frame = frame.f_back
print(__name__, "of the workspace was imported by", next(name for name in files if "importlib" not in name))
raise ImportError
"""


@pytest.fixture
def shadowed(runner, tmp_path):
    """The names of all modules of the standard library that a kernel has not loaded. The workspace has a file for each."""
    ended(runner.run("import json, os, sys"))
    names = ast.literal_eval(runner.run("sorted(sys.stdlib_module_names - set(sys.modules))").text)
    assert len(names) > 50
    for name in names:
        (tmp_path / f"{name}.py").write_text(FILE)
    (tmp_path / "program.py").write_text("print('ran')")
    return names


def test_no_cell_that_imports_nothing_meets_a_file_of_the_workspace(runner, shadowed):
    found = {}
    for cell in CELLS.strip().splitlines():
        code = cell.replace("\\n", "\n").replace("\\\\", "\\")
        answer = runner.run(code)
        if "of the workspace" in answer.out + answer.err:
            found[code] = answer.out + answer.err
    assert found == {}


def test_a_cell_and_its_files_find_those_of_the_workspace(runner, shadowed, tmp_path):
    (tmp_path / "program.py").write_text("import calendar")
    for code in ["import tempfile", "from bisect import *", "__import__('tempfile')", "import importlib\nimportlib.import_module('random')"]:
        cell = runner.run(code)
        assert (cell.error, "was imported by <ipython-input-" in cell.out) == ("ImportError", True), code
    for code in ["%run program.py", "import program"]:
        assert "calendar of the workspace was imported by" in runner.run(code).out
    # By a name that it was given, a module of the standard library imports for the cell.
    (tmp_path / "unittest.py").unlink()
    assert "fractions of the workspace" in runner.run("import unittest.loader\nunittest.loader.TestLoader().loadTestsFromName('fractions');").out


def test_an_installed_module_gets_those_that_are_installed(runner, shadowed):
    assert ended(runner.run("import logging.handlers\nlogging.handlers.__name__")).text == "'logging.handlers'"


def test_a_module_of_the_workspace_stays_the_cells(runner, tmp_path):
    for name in ["select", "pickle", "html", "selectors", "asyncio"]:
        (tmp_path / f"{name}.py").write_text("mine = 5")
    ended(runner.run("import sys\nfor name in ['select', 'pickle', 'html', 'selectors']: sys.modules.pop(name, None)"))
    assert ended(runner.run("import select, pickle, html, selectors\nselect.mine, pickle.mine, html.mine")).text == "(5, 5, 5)"
    ended(runner.run("async def f(): return 5\nassert await f() == 5"))
    cell = runner.run("pickle.dumps")
    assert "module 'pickle' has no attribute 'dumps'" in cell.error
    assert ended(runner.run("from IPython.display import HTML\nHTML('<b>x</b>')")).text == "x"
    assert ended(runner.run("import select, html\nselect.mine, html.mine")).text == "(5, 5)"


def test_an_installed_module_finds_what_a_cell_puts_into_the_path(runner, tmp_path):
    (tmp_path / "lib").mkdir()
    for place in ["", "lib"]:
        (tmp_path / place / "executing.py").write_text(f"raise ImportError('that of the folder {place}')")
    ended(runner.run("import sys\nsys.path.insert(0, 'lib')"))
    assert runner.run("import stack_data").error == "ImportError: that of the folder lib"


def test_a_finder_that_asks_all_others_is_asked_once(runner):
    finder = """
import sys
class Asking:
    def find_spec(self, *given):
        return next(filter(None, (one.find_spec(*given) for one in sys.meta_path if one is not self)), None)
sys.meta_path.insert(0, Asking())
import stack_data, fractions, calendar
"""
    ended(runner.run(finder))


@pytest.mark.parametrize("code", ["sys.meta_path.clear()", "sys.meta_path = None", "sys.path = None", "sys.path_importer_cache = None"])
def test_after_a_cell_that_breaks_imports_the_next_can_import(runner, tmp_path, code):
    (tmp_path / "tempfile.py").write_text("mine = 5")
    ended(runner.run(f"import sys\n{code}"))
    assert ended(runner.run("import tempfile, fractions\n%time 1\ntempfile.mine")).text == "5"
