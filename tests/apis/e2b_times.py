"""How long E2B's SDK takes, for tests/python/beside_e2b.py: `e2b_times.py STEP…` prints the times of each step in milliseconds, as JSON."""

import json
import os
import sys
import time

from e2b_code_interpreter import Sandbox

SIZE = 10_000_000
MANY = 100


def times(number, work):
    took = []
    for _ in range(number):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1e3)
    return took


def starts():
    made = []

    def start():
        made.append(Sandbox.create())
        made[-1].run_code("1 + 1")

    def started(number):
        took = times(number, start)
        while made:
            made.pop().kill()
        return took

    # The first ones set the connections up.
    started(3)
    took = []
    for _ in range(5):
        took += started(3)
        time.sleep(1)
    return {"create and first run_code": took}


def cells():
    with Sandbox.create() as sandbox:
        times(5, lambda: sandbox.run_code("1 + 1"))
        return {"further run_code": times(100, lambda: sandbox.run_code("1 + 1"))}


def commands():
    with Sandbox.create() as sandbox:
        times(3, lambda: sandbox.commands.run("true"))
        return {'commands.run("true")': times(50, lambda: sandbox.commands.run("true"))}


def files():
    data = os.urandom(SIZE)
    with Sandbox.create() as sandbox:
        up = times(5, lambda: sandbox.files.write("big", data))
        down = times(5, lambda: sandbox.files.read("big", format="bytes"))
        assert bytes(sandbox.files.read("big", format="bytes")) == data
    return {"10 MB up": up, "10 MB down": down}


def many():
    made = []
    opened = times(MANY, lambda: made.append(Sandbox.create()))
    assert [sandbox.run_code("6 * 7").text for sandbox in made[::10]] == ["42"] * (MANY // 10)
    killed = times(MANY, lambda: made.pop().kill())
    assert Sandbox.list().next_items() == []
    return {"create, of a hundred": opened, "kill, of a hundred": killed}


STEPS = {step.__name__: step for step in (starts, cells, commands, files, many)}
found = {}
for name in sys.argv[1:]:
    found |= STEPS[name]()
print(json.dumps(found))
