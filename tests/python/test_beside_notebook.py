"""The table of inputs for notebooks: what a session does with them is what was recorded in a kernel of Jupyter, but for the reasons
in the table. `make beside-notebook` also runs the kernels of Jupyter."""

import beside_notebook
import notebook_table
import pytest

pytestmark = pytest.mark.any_engine

INPUTS = notebook_table.inputs()
RECORDED = notebook_table.recorded()
# A few seconds. The others load large libraries, or wait.
QUICK = [
    "Values and the variables for them",
    "Pasted and indented code",
    "Commands of the shell",
    "Autocall",
    "Help",
    "History",
    "Display",
    "The shell's interface",
    "Ends",
]


SECTIONS = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.release) for name in INPUTS]


def test_the_table_is_recorded():
    assert {name: len(cells) for name, cells in RECORDED.items()} == {name: len(cells) for name, cells in INPUTS.items()}
    assert sum(map(len, INPUTS.values())) > 1000


@pytest.mark.parametrize("section", SECTIONS)
async def test_a_session_does_what_a_notebook_does(server, section):
    table = {section: INPUTS[section]}
    found = await beside_notebook.in_sessions(server.client, table)
    wrong = [f"line {cell.line}: {text}" for cell, text in beside_notebook.unexpected(table, RECORDED, found)]
    assert not wrong, "\n".join(wrong)
