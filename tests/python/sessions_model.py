"""Random sequences of cells in sessions, compared with a model of the variables.

The model is Python itself: what a cell does runs here, too, and its end, which may be bad, only in the session. A cell that
timed out, ran out of memory, killed its interpreter or was cancelled leaves the variables as they were before it. An exception,
an interruption too, leaves what was done before it. Files stay as they are in either case.

While a thread runs there are no checkpoints. Then a cell that can be interrupted is interrupted, and any other is undone with
all cells since the last checkpoint. In the end the session's journal must tell what ran and what was undone. All of it follows
from a seed.
"""

import argparse
import copy
import itertools
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import anyio
import sessions
from server import WAITS
from sessions import Answer, Session

SEQUENCES = 300
STEPS = 24
AT_ONCE = 2

# The longest that a cell may take that has to time out, and the longest wait until one runs that is cancelled or interrupted.
SHORT = "1s"
RUNS_WITHIN_S = 30

MEMORY_MB = 256
CHECKPOINTS = 8
SETTINGS = {"sessions": {"max": 64, "maxPerClient": 64, "checkpoints": CHECKPOINTS}}

FILE = "log.txt"

SETUP = """\
class Counter:
    def __init__(self):
        self.at = 0
    def next(self):
        self.at += 1
        return self.at
def step(x, by=1):
    return x + by
def bump():
    global n
    n += 1
n, items, table, blob, counter = 0, [], {}, b"", Counter()
alias = items
dice = __import__("random").Random(7)
ends = None
"""
FIRST = f"{SETUP}\nopen({FILE!r}, 'w').close()"

STATE = """\
[n, items, sorted(table.items()), alias is items, alias, len(blob), counter.at, step(0), \
dice.getstate()[1][-1], dice.getstate()[1][0]]"""
LOOK = f"print(__import__('json').dumps([{STATE}, open({FILE!r}).read()]))"

EFFECTS = [
    "n += {k}",
    "n = step(n)",
    "bump()",
    "n = dice.randrange(1000)",
    "items.append({k})",
    "items.append(counter.next())",
    "items[:] = items[{k} % 3:]",
    "items = list(items)",
    "alias = items",
    "table[{k}] = table.get({k}, 0) + n",
    "table.pop({k}, None)",
    "blob = bytes({k} << 16)",
    "def step(x, by={k}): return x + by",
]

ENDLESS = ["while True: pass", "__import__('time').sleep(600)"]
DEAF = """\
while True:
    try: __import__('time').sleep(600)
    except BaseException: pass"""

# Starts a thread, or ends it, so that no trace is left of it.
THREAD = """\
import os, threading
if ends is None:
    ends = threading.Event()
    threading.Thread(target=ends.wait, daemon=True).start()
else:
    ends.set()
    ends = None
    while len(os.listdir('/proc/self/task')) > 1: pass"""

# Takes more than 80 % of the memory. If it is interrupted it gives it back.
HOARD = f"""\
hoard = []
try:
    while len(hoard) < {(MEMORY_MB * 81 // 100 + 7) // 8}: hoard.append(b'x' * (8 << 20))
    while True: pass
finally: hoard.clear()"""

# The end of a cell, by its kind: the code, and what must be said of it.
ENDS = {
    "good": ([""], "success"),
    "exception": (["raise ValueError({k})", "1 / 0", "undefined_name", "def broken(:"], "error"),
    "exit": (["raise SystemExit({k})"], None),
    "timeout": ([*ENDLESS, DEAF], "timeout"),
    "memory": (["hoard = []\nwhile True: hoard.append(b'x' * (1 << 24))"], "out_of_memory"),
    "_exit": (["__import__('os')._exit({k})"], None),
    "crash": (["__import__('ctypes').string_at(0)", "__import__('os').abort()"], "error"),
    "killed": (["__import__('os').kill(__import__('os').getpid(), 9)"], None),
    "cancelled": (ENDLESS, None),
    "interrupted": (ENDLESS, "error"),
    "thread": ([THREAD], "success"),
    "short": ([HOARD], "timeout"),
}
UNDONE = {"timeout", "memory", "_exit", "crash", "killed", "cancelled", "short"}
# Those that are interrupted instead where there is no checkpoint, unless they are deaf.
INTERRUPTED = {"timeout", "cancelled", "short"}
# What a cell says that has no checkpoint.
NO_CHECKPOINT = "there is no checkpoint before this cell, because threads are running"
# Code that is no Python runs not at all.
NO_PYTHON = "def broken(:"

WEIGHTS = {"good": 10, "exception": 4, "exit": 1, "timeout": 2, "memory": 1, "_exit": 2, "crash": 2, "killed": 1,
           "cancelled": 2, "interrupted": 2, "rewind": 5, "look": 8, "thread": 3, "command": 3, "short": 1}


class Step(NamedTuple):
    kind: str
    # What the cell does before its end, and the end.
    effects: str = ""
    end: str = ""
    cells: int = 0

    def code(self, number):
        if self.kind == "look":
            return LOOK
        if self.kind == "command":
            return f"printf 'c{number} ' >> {FILE}"
        runs = "print('runs', flush=True)" if self.kind in ("cancelled", "interrupted") else ""
        return "\n".join(filter(None, [wrote(number), self.effects, runs, self.end]))

    def is_undone(self, has_checkpoint):
        """Whether the cell is undone, with the ones before it if there is no checkpoint."""
        can_be_interrupted = self.kind in INTERRUPTED and self.end != DEAF
        return self.kind in UNDONE and (has_checkpoint or not can_be_interrupted)


class Entry:
    """The expected entry of the journal for a cell or command."""

    def __init__(self, number, code):
        self.number, self.code, self.state = number, code, "ran"

    def told(self):
        return {"cell": self.number, "code": self.code, "state": self.state}


class Ran(NamedTuple):
    """A cell that was not undone."""

    entry: Entry
    # The variables before it. Before the first cell there are none.
    before: dict | None
    has_checkpoint: bool
    # The file before it.
    written: str = ""


class Difference(Exception):
    """A session is not as the model says."""


def has_files(message):
    """Whether files were undone with their cells. They are not if memory was short."""
    return "files are not" not in message and "except for" not in message


def wrote(number):
    """Code that notes in a file that a cell ran."""
    return f"with open({FILE!r}, 'a') as file: file.write('{number} ')"


def sequence(seed):
    """The steps that follow from a seed."""
    dice = random.Random(seed)
    steps = []
    for _ in range(STEPS):
        (kind,) = dice.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
        if kind == "rewind":
            steps.append(Step(kind, cells=dice.choice([1, 1, 2, 3, 5])))
        elif kind in ("look", "command"):
            steps.append(Step(kind))
        else:
            effects = "\n".join(dice.choice(EFFECTS).format(k=dice.randrange(9)) for _ in range(dice.randrange(4)))
            steps.append(Step(kind, effects, dice.choice(ENDS[kind][0]).format(k=dice.randrange(1, 9))))
    return [*steps, Step("look")]


class Model:
    """The expected variables, file and journal."""

    def __init__(self):
        self.variables = {}
        exec(SETUP, self.variables)
        self.written = ""
        self.journal = [Entry(1, FIRST)]
        self.past = [Ran(self.journal[0], None, has_checkpoint=True)]
        # So many checkpoints can't have been given up.
        self.sure = 1
        # Whether a thread runs, so that there are no checkpoints.
        self.has_thread = False

    def begin(self, step, number, has_files=True):
        """A cell or command runs. Returns how many cells are undone then, with the files that they have changed if `has_files`."""
        entry = Entry(len(self.journal) + 1, step.code(number))
        self.journal.append(entry)
        if step.kind == "command":
            self.written += f"c{number} "
            return 0
        has_checkpoint = not self.has_thread
        self.past.append(Ran(entry, self._copy(), has_checkpoint, self.written))
        self.sure += has_checkpoint
        if step.kind in ("memory", "short"):
            # The newest one is kept while the cell runs.
            self.sure = min(self.sure, 1)
        undone = self._since_checkpoint() if step.is_undone(has_checkpoint) else 0
        if step.kind != "look" and step.end != NO_PYTHON:
            self.written += f"{number} "
            if not undone:
                exec(step.effects, self.variables)
        if step.kind == "thread":
            self.has_thread = not self.has_thread
        if undone:
            self.rewind(undone, has_files)
        elif step.kind in ("timeout", "short"):
            entry.state = "timed_out"
        self.sure = min(self.sure, CHECKPOINTS)
        return undone

    def _since_checkpoint(self):
        return next(cells for cells, ran in enumerate(reversed(self.past), 1) if ran.has_checkpoint)

    def may_rewind(self, cells):
        """Whether rewinding so far has to work, or may, or must not."""
        # Before the first cell there is no model.
        if cells >= len(self.past) or not self.past[-cells].has_checkpoint:
            return False
        return True if self._checkpoints(cells) <= self.sure else None

    def _checkpoints(self, cells):
        return sum(ran.has_checkpoint for ran in self.past[-cells:])

    def rewind(self, cells, has_files=True):
        """Goes back to a checkpoint, before which no thread ran."""
        before = self.past[-cells].before
        if has_files:
            self.written = self.past[-cells].written
        self.sure = max(self.sure - self._checkpoints(cells), 0)
        for ran in self.past[-cells:]:
            ran.entry.state = "undone"
        del self.past[-cells:]
        self.has_thread = False
        # Functions look up their variables here, so it stays the same dictionary.
        self.variables.clear()
        self.variables.update(before)

    def state(self):
        return json.loads(json.dumps([eval(STATE, self.variables), self.written]))

    def _copy(self):
        builtins = self.variables.pop("__builtins__", None)
        copied = copy.deepcopy(self.variables)
        self.variables["__builtins__"] = builtins
        return copied | {"__builtins__": builtins}


class Run:
    """One sequence in one session, and everything that was sent and answered."""

    def __init__(self, session):
        self.session = session
        self.model = Model()
        self.told = []

    async def take(self, number, step):
        if step.kind == "rewind":
            await self.rewind(step)
            return
        self.told.append({"kind": step.kind, "cell": step.code(number), "answer": None})
        answer = await self.send(number, step)
        self.told[-1]["answer"] = str(answer)
        has_checkpoint = step.kind == "command" or not self.model.has_thread
        undone = self.model.begin(step, number, answer is None or has_files(answer.data.get("message", "")))
        if answer is None:
            return
        if not answer.ran:
            raise Difference(f"the cell was not run: {answer}")
        if answer.data["cell"] != len(self.model.journal):
            raise Difference(f"the number of the cell must be {len(self.model.journal)}: {answer}")
        said = ENDS[step.kind][1] if step.kind in ENDS else "success"
        if said is not None and answer.status != said:
            raise Difference(f"the status is {answer.status!r}, and must be {said!r}: {answer}")
        if answer.undone != (undone > 0):
            raise Difference(f"the answer says {'that' if answer.undone else 'nothing of that'} the cell was undone: {answer}")
        of_undone = "the cell was undone" if undone == 1 else f"the last {undone} cells were undone"
        if undone and of_undone not in answer.data["message"]:
            raise Difference(f"the answer does not say {of_undone!r}: {answer}")
        if has_checkpoint == any(NO_CHECKPOINT in note for note in answer.data.get("notes", [])):
            raise Difference(f"there must be {'a' if has_checkpoint else 'no'} checkpoint before the cell: {answer}")
        if step.kind == "look":
            found, expected = json.loads(answer.stdout), self.model.state()
            if found != expected:
                raise Difference(f"the state is {found}, and must be {expected}")

    async def rewind(self, step):
        # Never to where nothing was defined.
        cells = step.cells if step.cells < len(self.model.past) else CHECKPOINTS + len(self.model.past) + 1
        answer = await self.session.rewind(cells)
        self.told.append({"kind": "rewind", "cells": cells, "answer": str(answer)})
        must = self.model.may_rewind(cells)
        if must is not None and must == answer.is_error:
            raise Difference(f"rewinding by {cells} {'must' if must else 'must not'} work: {answer}")
        if answer.is_error:
            return
        if answer.data["undone_cells"] != cells:
            raise Difference(f"{cells} cells must be undone: {answer}")
        self.model.rewind(cells, "notes" not in answer.data)

    def compare_journal(self, answer):
        """Compares the answer to a client that uses the closed session."""
        if answer.status != "session_gone" or answer.data["forgotten_cells"] != 0:
            raise Difference(f"the whole journal must be told: {answer}")
        expected = [entry.told() for entry in self.model.journal]
        for found, step in itertools.zip_longest(answer.data["journal"], expected):
            if found != step:
                raise Difference(f"the journal has {found}, and must have {step}")

    async def send(self, number, step):
        """Sends a cell. Returns the answer, if one comes."""
        if step.kind == "command":
            command = {"session": self.session.id, "command": step.code(number)}
            return await sessions.call(self.session.client, "run_command", **command)
        arguments = {"timeout": SHORT} if step.kind in ("timeout", "short") else {}
        if step.kind not in ("cancelled", "interrupted"):
            return await self.session.cell(step.code(number), **arguments)
        runs = anyio.Event()
        answers = []

        async def listen(progress, total, message):
            if "runs" in (message or ""):
                runs.set()

        async def ask():
            cell = {"session": self.session.id, "entrypoint_code": step.code(number)}
            answers.append(Answer(
                await self.session.client.call_tool("execute_code", cell, progress_callback=listen, meta=WAITS)
            ))

        async with anyio.create_task_group() as calls:
            calls.start_soon(ask)
            with anyio.fail_after(RUNS_WITHIN_S):
                await runs.wait()
            if step.kind == "cancelled":
                calls.cancel_scope.cancel()
            else:
                await self.session.interrupt()
        return answers[0] if answers else None


async def run(client, seed):
    """Runs the sequence of a seed. Returns nothing if all is as the model says, or else everything that is known."""
    session = await Session.open(client, memory_mb=MEMORY_MB)
    it = Run(session)
    steps = sequence(seed)
    try:
        first = await session.cell(FIRST)
        if first.status != "success":
            raise Difference(f"the first cell: {first}")
        for number, step in enumerate(steps, 1):
            await it.take(number, step)
        await session.close()
        it.compare_journal(await session.cell("n"))
    except (Exception, BaseExceptionGroup) as error:
        return {"seed": seed, "step": len(it.told), "what": what(error), "steps": it.told}
    return None


def what(error):
    """An exception in words, and those that it groups."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(what, error.exceptions))
    return f"{type(error).__name__}: {error}"


async def run_many(client, seeds, at_once):
    """Runs sequences, `at_once` at a time. Returns the first of them that differs."""
    waiting = list(enumerate(seeds))[::-1]
    differing = {}

    async def work():
        # What comes behind one that differs is not looked at.
        while waiting and not differing:
            number, seed = waiting.pop()
            if (found := await run(client, seed)) is not None:
                differing[number] = found
            print(".", end="", flush=True)

    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(work)
    return differing[min(differing)] if differing else None


async def check(options):
    seeds = [options.only] if options.only else [f"{options.seed}/{number}" for number in range(options.sequences)]
    with tempfile.TemporaryDirectory() as folder:
        async with sessions.clients(Path(folder), options.transport, 1, **SETTINGS) as (_, [client]):
            assert await sessions.has_sessions(client), "this server has no sessions"
            return await run_many(client, seeds, options.at_once)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--sequences", type=int, default=SEQUENCES)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--only", metavar="SEED/NUMBER", help="this sequence alone")
    parser.add_argument("--transport", choices=["stdio", "http"], default="stdio")
    parser.add_argument("--report", type=Path, default=Path("sessions_model.json"), help="where the first that differs is written")
    options = parser.parse_args()
    print(f"{options.sequences} sequences of {STEPS} steps, seed {options.seed}")
    found = anyio.run(check, options)
    print()
    if found:
        sessions.save(options.report, found)
        sys.exit(f"step {found['step']}: {found['what']}\nall of it is in {options.report}\n"
                 f"repeat it: scripts/python tests/python/sessions_model.py --only {found['seed']}")


if __name__ == "__main__":
    main()
