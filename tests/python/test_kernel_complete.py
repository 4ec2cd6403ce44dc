"""The kernel of a Python session: names that complete what is typed at a prompt. It needs no engine."""

import pytest
from kernel import ended

pytestmark = pytest.mark.any_engine

OBJECTS = """
import collections, math
calls = []
class Base:
    inherited = 1
class Thing(Base):
    kind = collections
    def __init__(self):
        self.first = self
        self.own = "text"
    def method(self): ...
    @property
    def computed(self):
        calls.append("computed")
        return self
    def __getattr__(self, name):
        calls.append(name)
        return self
    def __dir__(self):
        calls.append("dir")
        return ["nothing"]
class Meta(type):
    def __getattribute__(self, name):
        calls.append(name)
        return type.__getattribute__(self, name)
class Odd(metaclass=Meta):
    __slots__ = ["slot"]
class Space(dict):
    def __contains__(self, name):
        calls.append(name)
        return True
    __getitem__ = get = __contains__
    def __iter__(self):
        calls.append("iter")
        return iter(["strange"])
thing, odd, strange = Thing(), Odd(), Thing()
strange.__dict__ = Space(own=1)
calls.clear()
"""


def names(runner, text):
    return runner.complete(text)[1]


def test_names_and_attributes(runner):
    ended(runner.run(OBJECTS))
    assert runner.complete("x = thi") == (4, ["thing"])
    assert runner.complete("\u00e9; thing.") == (10, ["computed", "first", "inherited", "kind", "method", "own"])
    assert names(runner, "prin") == ["print"]
    assert names(runner, "whi") == ["while"]
    assert names(runner, "thing.first.first.o") == ["own"]
    assert names(runner, "thing.own.upp") == ["upper"]
    assert names(runner, "math.sq") == ["sqrt"]
    assert names(runner, "Thing.kind.Cou") == ["Counter"]
    assert names(runner, "x\nmath.fl") == ["floor"]
    assert names(runner, "thing.__ini") == ["__init__", "__init_subclass__"]
    assert names(runner, "odd.") == names(runner, "Odd.") == ["slot"]


def test_nothing_of_the_client_runs(runner):
    ended(runner.run(OBJECTS))
    for text in ["thing.computed.", "thing.missing.", "thing.method.", "odd.slot.", "thing[0].", "1.", "f().", "nothing.", "....", "", "strange.", "strange.own."]:
        names(runner, text)
    assert runner.run("calls").text == "[]"
    ended(runner.run("import sys\nsys.modules['re'] = None"))
    assert names(runner, "thin") == ["thing"]
    ended(runner.run("sys.stdlib_module_names = strange.__dict__"))
    assert "os" in names(runner, "import o")
    assert runner.run("calls").text == "[]"


def test_modules(runner):
    assert "asyncio" in names(runner, "import asyn") and "asyncio" in names(runner, "from asyn")
    ended(runner.run("import os.path"))
    assert "path" in names(runner, "import os.pa")
    assert names(runner, "from os.path import exis") == ["exists"]


def test_there_is_a_bound(runner):
    ended(runner.run("globals().update((f'name_{n:05}', n) for n in range(50_000))"))
    assert len(names(runner, "name_")) == 200
    ended(runner.run("globals()['x' * 10_000] = globals()['x y'] = globals()[5] = 1"))
    assert names(runner, "x") == []
    # The bound is in bytes.
    ended(runner.run("globals().update({'\u00e9' * 101: 1, '\u00e9' * 100: 2})"))
    assert names(runner, "\u00e9") == ["\u00e9" * 100]


def test_a_cell_goes_on_after_it(runner):
    ended(runner.run("value = 1"))
    assert runner.prepare() == ""
    assert names(runner, "val") == ["value"]
    assert runner.run("value").text == "1"
    runner.undo()
    assert names(runner, "val") == ["value"]


def test_files_and_keys_in_strings(runner, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/table.csv").write_text("")
    (tmp_path / "data/.hidden").write_text("")
    ended(runner.run("settings = {'first key': 1, 'second': 2, 3: 4}"))
    assert runner.complete("open('da") == (6, ["data/"])
    assert names(runner, 'open("data/') == ["table.csv"]
    assert names(runner, "%cd da") == names(runner, "x = !ls da") == ["data/"]
    assert names(runner, "open('missing/") == names(runner, "'a' # da") == []
    assert names(runner, "settings['fi") == ["first key"]
    (tmp_path / "own_module.py").write_text("")
    assert names(runner, "import own_m") == ["own_module"]
