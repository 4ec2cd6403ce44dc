"""The kernel of a Python session that a template has prepared, or that has prepared itself while nothing was asked of it: its cells
find what they would find without that. It needs no engine."""

import pytest
from kernel import Runner, ended
from test_kernel_plain import without

pytestmark = pytest.mark.any_engine

# What cells see of those that were run before them, of IPython's state, and of what shows an exception.
SEEN = [
    "_i, _ii, _iii, _, __, ___, _oh, _dh[1:], In, Out",
    "get_ipython().execution_count, get_ipython().last_execution_succeeded, type(get_ipython()).__name__",
    "%history",
    "sorted(name for name in globals() if not name.startswith('_')), sorted(name for name in globals() if name.startswith('_'))",
    "import sys; [hasattr(sys, name) for name in ('last_value', 'last_exc', 'last_traceback')], sys.argv, __name__",
    "import linecache; [name for name in linecache.cache if name.startswith('<ipython')]",
    "import gc; gc.isenabled(), gc.get_threshold(), len(get_ipython().events.callbacks['post_execute'])",
    "get_ipython().history_manager.input_hist_raw, list(get_ipython().history_manager.output_hist)",
    "get_ipython().compile.flags, hasattr(get_ipython().InteractiveTB, 'tb'), get_ipython().user_ns is globals()",
    "%whos",
    "def f():\n    return 1 / 0\nf()",
    "%tb",
    "x = = 1",
    "!echo $((1 + 1))",
    "await __import__('asyncio').sleep(0, 5)",
    "import re, sys\nsys.modules.clear()",
    "import math\n[1]",
]


def all_of(runner):
    """All that the cells show."""
    cells = [runner.run(code) for code in SEEN]
    assert runner.close() == 0
    return [(cell.how, cell.error, cell.text, cell.out, cell.err) for cell in cells]


@pytest.mark.parametrize("is_prepared", [True, False])
def test_cells_find_what_they_find_without_it(tmp_path, is_prepared):
    # The first cell comes at once, so there is no time to prepare anything.
    expected, runner = all_of(Runner(tmp_path)), Runner(tmp_path, is_prepared=is_prepared)
    if not is_prepared:
        runner.wait_until_loaded()
    found = all_of(runner)
    for code, one, other in zip(SEEN, expected, found):
        assert one == other, code
    assert [how for how, *_ in found].count("failed") == 2, found


def test_cells_are_undone(tmp_path):
    runner = Runner(tmp_path, is_prepared=True)
    for number in range(3):
        assert runner.prepare() == ""
        assert ended(runner.run(f"x = {number}\nIn[-1], len(In), x")).text == f"('x = {number}\\nIn[-1], len(In), x', {number + 2}, {number})"
    for number in [1, 0]:
        runner.undo()
        assert ended(runner.run("x")).text == str(number)
    assert runner.close() == 0


@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_first_cell_and_a_first_exception_load_nothing(tmp_path, is_prepared):
    runner = Runner(tmp_path, is_prepared=is_prepared)
    if not is_prepared:
        runner.wait_until_loaded()
    ended(runner.run("import sys\nbefore = {*sys.modules}"))
    assert runner.run("1 / 0").how == "failed"
    assert ended(runner.run("{*sys.modules} - before")).text == "set()"
    assert runner.close() == 0


@pytest.mark.parametrize("package", ["raise ImportError('there is none')", "raise ValueError('it does not work')"])
def test_an_image_whose_ipython_is_missing_or_fails_has_plain_cells(tmp_path, package):
    runner = without(tmp_path, package, "", is_prepared=True)
    first = runner.run("x = 1\nx")
    assert (first.text, "get_ipython" in first.out) == ("1", False)
    assert "needs IPython" in runner.run("%time x").error
    assert runner.close() == 0
