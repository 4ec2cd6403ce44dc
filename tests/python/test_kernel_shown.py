"""The kernel of a Python session: values and their forms, figures, and errors. It needs no engine."""

import base64
import os
import re
import subprocess
import sys
import time

import pytest
from kernel import PYTHON, Runner, ended

pytestmark = pytest.mark.any_engine

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")


# Texts, as notebooks show them.

LONG = "[" + ",\n ".join(map(str, range(40))) + "]"
TEXTS = {
    "[1, 'a', None, (1,), (), {}]": "[1, 'a', None, (1,), (), {}]",
    "list(range(40))": LONG,
    "{'b': list(range(30)), 'a': 1}": "{'b': [" + ",\n  ".join(map(str, range(30))) + "],\n 'a': 1}",
    "['x' * 38, 'y' * 34]": "['" + "x" * 38 + "',\n '" + "y" * 34 + "']",
    "['x' * 38, 'y' * 33]": "['" + "x" * 38 + "', '" + "y" * 33 + "']",
    "{3, 1, 2}, frozenset({2, 1}), set()": "({1, 2, 3}, frozenset({1, 2}), set())",
    "x = [1]; x.append(x); x": "[1, [...]]",
    "x = {}; x['x'] = x; x": "{'x': {...}}",
    "[int, len, ValueError('a')]": "[int, <function len(obj, /)>, ValueError('a')]",
    "def f(a, *, b=1): ...\nf": "<function __main__.f(a, *, b=1)>",
    "class C: ...\nC": "__main__.C",
    "from collections import *\n[defaultdict(int, a=1), Counter('aab'), deque([1], 3)]": (
        "[defaultdict(int, {'a': 1}), Counter({'a': 2, 'b': 1}), deque([1], maxlen=3)]"
    ),
    "OrderedDict(a=1), OrderedDict()": "(OrderedDict([('a', 1)]), OrderedDict())",
    "class R:\n    def __repr__(self): return 'one\\ntwo'\n[R(), R()]": "[one\n two,\n one\n two]",
    "namedtuple('P', 'x y')(1, 2)": "P(x=1, y=2)",
    "class L(list): ...\nL([1])": "[1]",
    "1.5, 2j, b'x', True, ...": "(1.5, 2j, b'x', True, Ellipsis)",
}


def test_texts(runner):
    runner.run("from collections import *")
    for code, text in TEXTS.items():
        assert ended(runner.run(code)).text == text


@pytest.mark.parametrize(
    "code", ["'x' * 10**8", "list(range(10**7))", "[[['x' * 50] * 1000] * 1000] * 1000", "'\\u4e2d' * 60_000", "b'x' * 10**8"]
)
def test_long_texts_are_cut_in_bounded_time(runner, code):
    began = time.monotonic()
    text = ended(runner.run(code)).value["text/plain"]
    assert time.monotonic() - began < 20
    assert len(text) <= 64 << 10
    assert text.endswith(b"...]") or b"... (cut here" in text[-60:]
    text.decode()


def test_the_error_of_a_value_whose_text_fails_is_printed(runner):
    cell = ended(runner.run("class C:\n    def __repr__(self):\n        return 1 / 0\nC()"))
    assert cell.value is None and cell.err.endswith("ZeroDivisionError: division by zero\n")
    assert "Cell In[1], line 3 in __repr__\n    return 1 / 0\n" in cell.err and "session/" not in cell.err


# Other forms.

FORMS = f"""
class Rich:
    def __repr__(self): return "rich"
    def _repr_html_(self): return "<b>"
    def _repr_markdown_(self): return "*b*"
    def _repr_svg_(self): return "<svg/>"
    def _repr_png_(self): return {PNG!r}
    def _repr_jpeg_(self): return "/9j/"
    def _repr_latex_(self): return "$b$"
    def _repr_json_(self): return {{"b": [1]}}
class Bundle:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {{"text/plain": "mine", "text/html": "<i>", "x/y": "?"}}, {{"text/html": {{}}}}
    def _repr_html_(self): return "not this"
class Itself:
    def _ipython_display_(self): print("itself")
class Every:
    def __getattr__(self, name): return lambda *a, **k: "every"
    def __repr__(self): return "every"
class Failing:
    def __repr__(self): return "failing"
    def _repr_html_(self): return 1 / 0
    def _repr_latex_(self): return "$f$"
    def _repr_png_(self): return "no base64 at all"
"""
RICH = {
    "text/plain": b"rich",
    "text/html": b"<b>",
    "text/markdown": b"*b*",
    "image/svg+xml": b"<svg/>",
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff",
    "text/latex": b"$b$",
    "application/json": b'{"b": [1]}',
}


def test_forms(runner):
    ended(runner.run(FORMS))
    assert runner.run("Rich()").value == RICH
    cell = runner.run("display(Rich(), 5)\ndisplay({'text/html': 'raw'}, raw=True)\n5")
    assert cell.shown == [RICH, {"text/plain": b"5"}, {"text/plain": b"", "text/html": b"raw"}]
    assert cell.value == {"text/plain": b"5"}
    assert runner.run("Bundle()").value == {"text/plain": b"mine", "text/html": b"<i>"}
    cell = runner.run("Itself()")
    assert (cell.value, cell.out) == (None, "itself\n")
    assert runner.run("Every()").value == {"text/plain": b"every"}
    assert runner.run("Rich").value == {"text/plain": b"__main__.Rich"}
    mixed = "class Mixed:\n    def _repr_mimebundle_(self, **more): return {5: 6, None: 'x', 'text/plain': 'mixed'}\nMixed()"
    assert runner.run(mixed).value == {"text/plain": b"mixed"}
    failing = runner.run("Failing()").value
    assert {"text/plain": b"failing", "text/latex": b"$f$"}.items() <= failing.items() and "text/html" not in failing


def test_forms_that_are_too_long_are_left_out(runner):
    code = "class Long:\n    def _repr_html_(s): return 'x' * (2**19 + {0})\n    def _repr_png_(s): return b'x' * (2**22 + {0})\n"
    runner.run(code.format(1))
    assert list(runner.run("Long()").value) == ["text/plain"]
    runner.run(code.format(0))
    assert {kind: len(form) for kind, form in runner.run("Long()").value.items() if kind != "text/plain"} == {
        "text/html": 512 << 10,
        "image/png": 4 << 20,
    }


def test_one_form_too_many_costs_only_itself(runner):
    code = "class Large:\n    def _repr_mimebundle_(s, **more):\n        return {'image/svg+xml': 'a' * 2**22, 'text/latex': 'b' * 2**22, 'text/html': 'c' * 2**19, 'text/plain': 'd'}\nLarge()"
    shown = ended(runner.run(code)).value
    assert {kind: len(form) for kind, form in shown.items()} == {"text/plain": 1, "image/svg+xml": 1 << 22, "text/html": 1 << 19}


def test_the_display_objects_of_ipython_show_their_forms(runner, tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    cell = ended(
        runner.run(
            "from IPython.display import display, HTML, Markdown, Image, SVG, JSON, Latex, clear_output\nimport IPython\n"
            "display(HTML('<b>'), Markdown('*b*'), SVG('<svg/>'), JSON({'a': 1}), Latex('$x$'))\n"
            "display(Image('a.png'), Image(data=open('a.png', 'rb').read()), Image(filename='a.png'))\n"
            "clear_output(wait=True)\nprint(IPython.get_ipython() is get_ipython())\nIPython.display.HTML('x')"
        )
    )
    kinds = [next(kind for kind in shown if kind != "text/plain") for shown in cell.shown]
    assert kinds == ["text/html", "text/markdown", "image/svg+xml", "application/json", "text/latex"] + ["image/png"] * 3
    assert [shown["image/png"] for shown in cell.shown[-3:]] == [PNG] * 3
    assert (cell.value["text/html"], cell.out) == (b"x", "True\n")


# Values without a text get one from their other forms.
READABLE = {
    "HTML('<h1>Title</h1><ul><li>one<li>two</ul><style>h1 {}</style><p>a &amp; b')": "Title\n- one\n- two\na & b",
    "HTML('<table><tr><th></th><th colspan=2>a</th></tr><tr><th>x</th><td>1</td><td>2</td></tr></table>')": "| a |\nx | 1 | 2",
    "HTML('<hr>')": "<hr>",
    "Markdown('*b*')": "*b*",
    "Latex('$x$')": "$x$",
    "JSON({'a': 1})": '{"a": 1}',
    "SVG('<svg/>')": "<svg/>",
    "Styler()": "a | b",
    "Named()": "a name",
}
STYLER = """
from IPython.display import *
class Styler:
    def _repr_html_(self): return "<table><tr><td>a</td><td>b</td></tr></table>"
class Named(Styler):
    def __repr__(self): return "a name"
"""


def test_values_without_text_are_shown_in_their_other_forms(runner):
    ended(runner.run(STYLER))
    for code, text in READABLE.items():
        assert ended(runner.run(code)).text == text, code


def test_a_file_with_the_name_of_ipython_breaks_nothing(runner, tmp_path):
    (tmp_path / "IPython.py").write_text("raise SystemExit('not this')")
    assert ended(runner.run("import IPython\nIPython.get_ipython() is get_ipython()")).text == "True"


FIGURES = """
class Gcf:
    figs = {}
    @classmethod
    def get_all_fig_managers(cls): return list(cls.figs.values())
    @classmethod
    def destroy(cls, num): cls.figs.pop(num).destroy()
class Figure:
    def __init__(self, name): self.name = name
    def _repr_png_(self): return self.name
    def __repr__(self):
        if self.name == 5: raise TypeError("5 is no name")
        return "<Figure>"
class Manager:
    def __init__(self, num, name):
        self.num, self.canvas = num, type("Canvas", (), {"figure": Figure(name)})
        Gcf.figs[num] = self
    def destroy(self): pass
class Own(Manager):
    _is_shown = False
    def destroy(self):
        if self._is_shown: display(self.canvas.figure)
"""


@pytest.fixture
def site(tmp_path):
    """A workspace, and a variable of the environment with a folder of modules."""
    folder = tmp_path / "site/matplotlib"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "_pylab_helpers.py").write_text(FIGURES)
    return tmp_path, {"PYTHONPATH": str(tmp_path / "site")}


def test_figures_are_shown_and_closed_at_the_end_of_a_cell(runner, site):
    runner.run("import sys\nsys.path.insert(0, 'site')\nfrom matplotlib._pylab_helpers import *")
    for end, how in [("", "ended"), ("\n1 / 0", "failed"), ("\nexit()", "exited")]:
        cell = runner.run(f"Manager(2, b'two')\nManager(1, b'one')\nManager(3, None){end}", checkpoint=True)
        assert cell.how == how
        # One without axes has no picture, but it is shown.
        assert [shown.get("image/png") for shown in cell.shown] == [b"one", b"two", None]
        assert cell.shown[2] == {"text/plain": b"<Figure>"}
        assert ended(runner.run("Gcf.figs")).text == "{}"
        assert runner.run("1").shown == []


def test_figures_of_our_image_show_themselves(site):
    runner = Runner(*site, preloaded=["matplotlib._pylab_helpers"])
    try:
        # It is the first cell, and everything was imported before the session began.
        code = "from matplotlib._pylab_helpers import *\nOwn(1, b'one')\nManager(2, b'two')\ndisplay(5)\n6"
        cell = ended(runner.run(code))
        assert [shown.get("image/png") for shown in cell.shown] == [None, b"one", b"two"]
        assert (cell.shown[0], cell.text) == ({"text/plain": b"5"}, "6")
    finally:
        assert runner.close() == 0


def test_a_figure_that_fails_comes_once_and_hides_no_error(runner, site):
    code = "import sys\nsys.path.insert(0, 'site')\nfrom matplotlib._pylab_helpers import *\nManager(1, 5)\nManager(2, b'two')"
    cell = runner.run(code)
    assert ended(cell).err.count("TypeError: 5 is no name\n") == 1
    assert [forms["image/png"] for forms in cell.shown] == [b"two"]
    assert (ended(runner.run("1")).shown, runner.run("Gcf.figs").text) == ([], "{}")
    assert runner.run("Manager(1, 5)\nraise ValueError").error == "ValueError"


# Pandas takes a window of 80 columns for granted where it knows of no notebook.

PANDAS = """
options = {"display.max_columns": 0}
get_option, set_option = options.__getitem__, options.__setitem__
"""
COLUMNS = "import pandas\npandas.options['display.max_columns']"


def test_tables_of_pandas_are_as_wide_as_in_notebooks(runner, site):
    folder, env = site
    (folder / "site/pandas.py").write_text(PANDAS)
    ended(runner.run("import sys, importlib.util\nsys.path.insert(0, 'site')"))
    # Code that only asks for it has not imported it.
    assert runner.run("importlib.util.find_spec('pandas').name, 'pandas' in sys.modules").text == "('pandas', False)"
    finders = int(runner.run("len(sys.meta_path)").text)
    assert ended(runner.run(COLUMNS)).text == "20"
    assert runner.run("len(sys.meta_path), vars(pandas.__loader__).keys() & {'exec_module'}").text == f"({finders}, set())"
    runner.run("pandas.set_option('display.max_columns', 7)", checkpoint=True)
    assert runner.run(COLUMNS, checkpoint=True).text == "7"
    for preloaded in [["pandas"], ["sys"]]:
        other = Runner(folder, env, preloaded)
        assert ended(other.run(COLUMNS)).text == "20"
        assert other.close() == 0
    (folder / "site/pandas.py").write_text(PANDAS.replace(": 0", ": 5"))
    other = Runner(folder, env, ["pandas"])
    assert ended(other.run(COLUMNS)).text == "5"
    assert other.close() == 0


def test_something_else_may_have_the_name_of_pandas(runner, tmp_path):
    (tmp_path / "pandas.py").write_text("1 / 0")
    assert runner.run("import pandas").error == "ZeroDivisionError: division by zero"
    (tmp_path / "pandas.py").write_text("mine = 5")
    assert ended(runner.run("import pandas\npandas.mine")).text == "5"


# Errors, compared with what the same Python prints for a file.

ERRORS = {
    "nested": "def f(a):\n    return 1 + (a / 0)\nx = 5\nf(x)",
    "cause": "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('b') from error",
    "context": "try:\n    [][1]\nexcept IndexError:\n    int('x')",
    "recursion": "def f():\n    f()\nf()",
    "attribute": "class C:\n    pass\nC().some.other",
    "syntax": "x = 1\ny = = 2",
    "indentation": "if True:\n  x = 1\n    y = 2",
    "open": "x = (1,\ny",
    "quote": "print('a)",
    "return": "x = 1\nreturn x",
    "exec": "exec('x = = 1')",
    "several lines": "x = max(1,\n    [][\n    0],\n    2)",
    "text": "'\u4e2d' + (1 + '\u4e2d')",
    "assert": "assert 1 == 2, 'no'",
}
if sys.version_info >= (3, 11):
    ERRORS["group"] = "try:\n    1 / 0\nexcept Exception as e:\n    raise ExceptionGroup('two', [e, ValueError(1)])"
    ERRORS["note"] = "e = ValueError('a')\ne.add_note('noted')\nraise e"


@pytest.mark.parametrize("code", ERRORS.values(), ids=ERRORS)
def test_tracebacks_have_only_the_lines_of_the_client(runner, tmp_path, code):
    file = tmp_path / "program.py"
    code += "\n"
    file.write_text(code, encoding="utf-8")
    plain = subprocess.run([PYTHON, str(file)], capture_output=True, text=True, encoding="utf-8", check=False).stderr
    cell = runner.run(code, checkpoint=True)
    assert cell.how == "failed"
    assert "session/" not in cell.err and "interactiveshell" not in cell.err
    assert cell.err.splitlines()[-1] == plain.splitlines()[-1]
    lines = [line.strip() for line in cell.err.splitlines()]
    assert all(line.strip() in lines for line in plain.splitlines() if line.strip() in code.splitlines())
    # Where they are is the cell's own number.
    assert "In[1]" in cell.err or "ipython-input-1-" in cell.err
    assert cell.error.partition(":")[0] == plain.rstrip().splitlines()[-1].partition(":")[0] or "noted" in code or "Group" in code


def test_the_text_of_an_exception_is_made_once(runner):
    runner.run("class E(Exception):\n    def __str__(self):\n        print('asked')\n        return 'it'")
    cell = runner.run("raise E")
    assert (cell.error, cell.out) == ("E: it", "asked\n")
    assert runner.run("raise ValueError('a\\nb')").err.endswith("ValueError: a\nb\n")
    assert runner.run("class F(Exception):\n    def __str__(self): raise OSError\nraise F").error.startswith("F: <")
    long = runner.run("raise ValueError('\u4e2d' * 2000)")
    assert long.error == "ValueError: " + "\u4e2d" * 2000
    # Whatever the client has made of what shows it.
    broken = "import traceback\ntraceback.TracebackException = None\nget_ipython().InteractiveTB.structured_traceback = None\n"
    cell = runner.run(broken + "raise E")
    assert (cell.how, cell.error) == ("failed", "E: it"), cell.err


def test_errors_show_lines_of_earlier_cells(runner):
    runner.run("def f():\n    # before\n    return 1 / 0  # here")
    runner.run("import linecache\nlinecache.clearcache()")
    cell = runner.run("f()", checkpoint=True)
    assert "  Cell In[3], line 1\n    f()\n" in cell.err
    assert "  Cell In[1], line 3 in f\n    return 1 / 0  # here\n" in cell.err
    code = "import inspect\nprint(inspect.getsource(f))"
    assert runner.run(code, checkpoint=True).out == "def f():\n    # before\n    return 1 / 0  # here\n\n"
    assert runner.run("import sys\nsys.last_value").text == "ZeroDivisionError('division by zero')"


def test_errors_of_awaited_code_show_no_loop(runner):
    cell = runner.run("async def f():\n    import asyncio\n    await asyncio.sleep(0)\n    1 / 0\nawait f()")
    frames = [line.strip() for line in cell.err.splitlines() if line.startswith(("  File", "  Cell"))]
    assert frames == ["Cell In[1], line 5", "Cell In[1], line 4 in f"]


def test_files_of_the_workspace_do_not_stand_in_for_what_the_kernel_needs(runner, tmp_path):
    for name in ["traceback", "linecache", "asyncio", "subprocess", "re", "json", "inspect", "timeit", "selectors"]:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this')")
    assert "ZeroDivisionError" in runner.run("1 / 0").err
    assert ended(runner.run("!echo hi")).out == "hi\n"
    assert ended(runner.run("async def f(): return 5\nawait f()")).text == "5"
