"""A reward function for verl: the share of test cases that a program passes, on all nodes.

    custom_reward_function:
      path: .../isolator_ray/reward.py
      name: compute_score

The ground truth is JSON with `inputs` and `outputs`, two lists of the same length: what the program reads on standard input, and what
it must print. Or it has `asserts`, a list of Python statements that come after the program.
"""

import json
import re
import secrets
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from isolator_ray.client import Failed
from isolator_ray.cluster import run

# How long one test case can run, and how many of one answer run at once.
TIMEOUT_S = 10.0
AT_ONCE = 8

_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def compute_score(data_source, solution_str, ground_truth, extra_info=None, run=run, timeout=TIMEOUT_S):
    """The share of test cases that pass, from 0 to 1. An answer without a program has 0.

    Raises what `run` raises if no node has run a test case: that is no fault of the program, so it is no reward either.
    """
    blocks = _FENCED.findall(solution_str)
    if not blocks:
        return 0.0
    cases = _cases(blocks[-1], ground_truth)
    with ThreadPoolExecutor(min(AT_ONCE, len(cases))) as threads:
        passed = list(threads.map(lambda case: _passes(run, timeout, *case), cases))
    return sum(passed) / len(passed)


def _cases(program, ground_truth):
    """For each test case the code, its input, and whether what it has printed is right."""
    truth = json.loads(ground_truth) if isinstance(ground_truth, str) else ground_truth
    if truth.get("asserts"):
        return [_asserted(program, statement) for statement in truth["asserts"]]
    inputs, outputs = truth.get("inputs"), truth.get("outputs")
    if not inputs or not outputs or len(inputs) != len(outputs):
        raise ValueError("the ground truth needs inputs and outputs of the same number, or asserts")
    return [(program, given, partial(_same, expected)) for given, expected in zip(inputs, outputs, strict=True)]


def _asserted(program, statement):
    """A program that shows by its last line that it came to its end: one that exits before its test case has not passed."""
    end = secrets.token_hex(16)
    return f"{program}\n{statement}\nprint('\\n{end}')\n", "", lambda printed: printed.rstrip().endswith(f"\n{end}")


def _passes(run, timeout, code, given, is_right):
    try:
        ran = run(code, timeout=timeout, stdin=given)
    except Failed:
        # Nothing can run it, such as a program that is too long.
        return False
    return ran.ok and is_right(ran.stdout)


def _same(expected, printed):
    """Whether two outputs agree but for spaces at the ends of lines, and empty lines at the end."""

    def lines(text):
        return [line.rstrip() for line in text.rstrip().splitlines()]

    return lines(printed) == lines(expected)
