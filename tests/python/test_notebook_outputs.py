"""How the outputs of cells are compared: in a kernel of Jupyter, and in a session."""

import pytest
from notebook_table import Outcome, differences

pytestmark = pytest.mark.any_engine

# Texts of two outcomes, and whether they differ.
TEXTS = [
    ("<a.B object at 0x7f3a12345678>", "<a.B at 0x55d0aaaa1111>", False),
    ("1.03 s ± 6.3 ms per loop (mean ± std. dev. of 7 runs, 1 loop each)", "9 µs ± 1 µs per loop", False),
    ("slowest run took 9 times\n9 µs ± 1 µs per loop", "9 µs ± 1 µs per loop", False),
    ("np.float64(0.5)", "0.5", False),
    ("pandas 1.3.5", "pandas 3.1.1", False),
    ("a  b", "a b", True),
    ("0.5 and 1.5", "0.5 and 1.6", True),
    ("dtype: object", "dtype: str", True),
]


@pytest.mark.parametrize(("one", "other", "differ"), TEXTS)
def test_texts_differ_only_in_results_of_the_code(one, other, differ):
    for fields in ["out", "err"]:
        assert bool(differences(Outcome(**{fields: one}), Outcome(**{fields: other}))) is differ
    shown = [Outcome(shown=[{"text": text, "html": f"<b>{text}</b>"}]) for text in (one, other)]
    assert bool(differences(*shown)) is differ


def test_something_that_is_missing_is_a_difference():
    assert differences(Outcome(shown=[{"text": "1"}]), Outcome())
    assert differences(Outcome(shown=[{"text": "1", "html": "<b>1</b>"}]), Outcome(shown=[{"text": "1"}]))
    assert differences(Outcome(error="ValueError"), Outcome())


def test_pictures_are_counted_and_may_have_another_size():
    one, other = ({"text": "<Figure size 640x480 with 1 Axes>", "image/png": size} for size in ("400x300", "560x420"))
    assert not differences(Outcome(shown=[one]), Outcome(shown=[other]))
    assert differences(Outcome(shown=[one]), Outcome(shown=[one, one]))
