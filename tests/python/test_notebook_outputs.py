"""How the outputs of cells are compared with those that notebooks store."""

import pytest
from notebook_outputs import LAYOUT, OTHER, PICTURE, ROUNDING, Outputs, differences

pytestmark = pytest.mark.any_engine

TABLE = '<div>\n<style scoped>td {}</style>\n<table border="1"><tr>\n <td>1</td>\n</tr></table></div>'

# Values that are stored and found, and of which kind their difference is.
VALUES = [
    ("<a.B object at 0x7f3a12345678>", "<a.B at 0x55d0aaaa1111>", None),
    ("1.03 s ± 6.3 ms per loop (mean ± std. dev. of 7 runs, 1 loop each)", "9 µs ± 1 µs per loop", None),
    ("np.float64(0.5)", "0.5", None),
    ("pandas 1.3.5", "pandas 3.1.1", None),
    ("array([ 1.,  2.])", "array([1., 2.])", LAYOUT),
    ("[1,\n 2]", "[1, 2]", LAYOUT),
    ("3.49170664206", "3.49170664206445", ROUNDING),
    ("0.5 and 1.5", "0.5 and 1.6", OTHER),
    ("dtype: object", "dtype: str", OTHER),
]


def outputs(stdout="", stderr="", values=(), pictures=(), error=None):
    return Outputs(stdout, stderr, list(values), list(pictures), error)


def kinds(stored, found):
    return [difference.kind for difference in differences(stored, found)]


@pytest.mark.parametrize(("stored", "found", "kind"), VALUES)
def test_values_differ_only_in_results_of_the_code(stored, found, kind):
    expected = [] if kind is None else [kind]
    assert kinds(outputs(values=[(stored, None)]), outputs(values=[(found, None)])) == expected
    assert kinds(outputs(stdout=stored), outputs(stdout=found)) == expected


def test_a_value_that_is_missing_is_a_difference():
    assert kinds(outputs(values=[("1", None)]), outputs()) == [OTHER]


def test_of_tables_only_the_cells_are_compared():
    same = TABLE.replace(' border="1"', ' class="dataframe"').replace("td {}", "td { color: red }")
    assert kinds(outputs(values=[("", TABLE)]), outputs(values=[("", same)])) == []
    other = TABLE.replace("<td>1", "<td>2")
    assert kinds(outputs(values=[("", TABLE)]), outputs(values=[("", other)])) == [OTHER]


def test_warnings_are_no_difference_and_other_errors_are():
    warning = "/tmp/x.py:1: FutureWarning: soon\n  old()\n"
    assert kinds(outputs(stderr=warning), outputs()) == []
    assert kinds(outputs(), outputs(stderr="lost\n")) == [OTHER]


def test_pictures_are_counted_and_have_about_their_size():
    assert kinds(outputs(pictures=[(400, 300)]), outputs(pictures=[(560, 420)])) == []
    assert kinds(outputs(pictures=[(400, 300)]), outputs(pictures=[(400, 900)])) == [PICTURE]
    assert kinds(outputs(pictures=[(400, 300)]), outputs()) == [OTHER]


def test_the_first_line_of_a_difference_is_reported():
    (difference,) = differences(outputs(stdout="a  b\n1\n"), outputs(stdout="a b\n2\n"))
    assert (difference.stored, difference.found) == ("1", "2")
