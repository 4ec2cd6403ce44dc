"""The kernel of a Python session: checkpoints that are made before their cells come. It needs no engine."""

import os
import signal
import time

import pytest
from kernel import Gone, Runner, ended
from processes import children, open_files
from test_kernel import FAITHFUL_AGAIN, UNFAITHFUL

pytestmark = pytest.mark.any_engine


def test_a_cell_runs_in_the_process_that_was_made_for_it(runner):
    ended(runner.run("x = [1]"))
    for _ in range(3):
        assert runner.prepare() == ""
        pid, processes = runner.pids[-1], len(runner.pids)
        cell = ended(runner.run("import os\nx.append(2)\nx, os.getpid()"))
        assert (cell.checkpoint, cell.why_not) == (False, "not asked")
        assert (cell.text, len(runner.pids), children(pid)) == (f"([1, 2], {pid})", processes, [])
        runner.undo()
    assert ended(runner.run("x")).text == "[1]"


@pytest.mark.parametrize("reason", UNFAITHFUL)
def test_there_is_none_that_would_not_be_faithful_and_the_cell_is_told_again(runner, reason):
    ended(runner.run(UNFAITHFUL[reason]))
    before = open_files(runner.pids[-1])
    assert runner.prepare() == runner.prepare() == reason
    assert (len(runner.pids), open_files(runner.pids[-1])) == (1, before)
    cell = ended(runner.run("1", checkpoint=True))
    assert (cell.checkpoint, cell.why_not) == (False, reason)
    ended(runner.run(FAITHFUL_AGAIN.get(reason, "")))
    assert runner.prepare() == ("" if reason in FAITHFUL_AGAIN else reason)


def test_one_that_no_cell_has_used_can_be_undone(runner):
    ended(runner.run("x = 1"))
    for _ in range(3):
        runner.prepare()
        runner.undo()
    assert ended(runner.run("x += 1\nx")).text == "2"
    runner.prepare()
    runner.undo()
    assert ended(runner.run("x += 1\nx", checkpoint=True)).text == "3"
    runner.undo()
    assert ended(runner.run("x")).text == "2"


def test_two_of_the_same_cell(runner):
    ended(runner.run("x = 1"))
    assert runner.prepare() == runner.prepare() == ""
    assert ended(runner.run("x += 1\nx")).text == "2"
    for _ in range(2):
        runner.undo()
        assert ended(runner.run("x")).text == "1"


def test_cells_are_undone_one_by_one(runner):
    for number in range(5):
        assert runner.prepare() == ""
        ended(runner.run(f"x = {number}"))
    runner.prepare()
    runner.undo()
    for number in [3, 2, 1]:
        runner.undo()
        assert ended(runner.run("x")).text == str(number)


def test_a_crash_costs_one_cell(runner):
    ended(runner.run("x = 1"))
    runner.prepare()
    with pytest.raises(Gone):
        runner.run("import os\nx = 2\nos._exit(5)")
    runner.undo()
    assert ended(runner.run("x")).text == "1"


def test_one_that_was_killed_costs_nothing(runner):
    ended(runner.run("x = 1"))
    runner.prepare()
    os.kill(runner.pids[-1], signal.SIGKILL)
    runner.undo()
    assert ended(runner.run("x")).text == "1"


@pytest.mark.parametrize("has_run", [False, True])
def test_nothing_is_left_after_the_end(tmp_path, has_run):
    runner = Runner(tmp_path)
    ended(runner.run("import atexit\natexit.register(open, 'exit', 'w')\nfile = open('buffered', 'w')\nfile.write('x');"))
    runner.prepare()
    if has_run:
        ended(runner.run("y = 1"))
        runner.prepare()
    assert runner.close() == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"buffered": ""}


def test_random_numbers_go_on(runner, tmp_path):
    plain = Runner(tmp_path)
    code = ["import random\nrandom.seed(5)\nrandom.gauss(0, 1)", *["random.gauss(0, 1), random.random()"] * 3]
    expected = [plain.run(one).text for one in code]
    plain.close()
    found = []
    for one in code:
        runner.prepare()
        found.append(ended(runner.run(one)).text)
        # The cell that follows has the same numbers once more.
        runner.undo()
        runner.prepare()
        found[-1] = found[-1], ended(runner.run(one)).text
    assert found == [(one, one) for one in expected]


def test_open_files_are_where_they_were(runner, tmp_path):
    (tmp_path / "a").write_text("".join(f"{line}\n" for line in range(10_000)))
    ended(runner.run("file = open('a')\nfile.readline()"))
    runner.prepare()
    code = "sum(map(int, file))"
    first = ended(runner.run(code)).text
    runner.prepare()
    runner.undo()
    assert ended(runner.run("file.read()")).text == "''"
    runner.undo()
    assert first == ended(runner.run(code)).text == str(sum(range(10_000)))


def test_an_interrupt_before_the_cell_does_nothing(runner, tmp_path):
    for checkpoint in range(3):
        runner.prepare()
        runner.interrupt()
        assert ended(runner.run(f"{checkpoint}")).text == str(checkpoint)
    runner.prepare()
    finish = runner.start("open('began', 'w').close()\nwhile True: pass")
    until = time.monotonic() + 20
    while not (tmp_path / "began").exists():
        assert time.monotonic() < until
        time.sleep(0.002)
    runner.interrupt()
    assert finish().how == "interrupted"


def test_many_leave_nothing_open(runner):
    ended(runner.run("1"))
    counts = []
    for _ in range(20):
        runner.prepare()
        ended(runner.run("1"))
        counts.append(open_files(runner.pids[-1]))
    assert len(set(counts)) == 1
    until, streams = time.monotonic() + 5, None
    # The newest one may not have come so far.
    while streams != {"/dev/null"} and time.monotonic() < until:
        streams = {os.readlink(f"/proc/{pid}/fd/{number}") for pid in runner.pids[:-1] for number in (1, 2)}
    assert streams == {"/dev/null"}
