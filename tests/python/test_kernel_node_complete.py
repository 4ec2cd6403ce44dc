"""The kernel of a session in Node.js: names that complete what is typed at a prompt. It needs no engine."""

import pytest
from kernel_node import kernel  # noqa: F401

pytestmark = pytest.mark.any_engine

OBJECTS = """
const calls = [];
class Base { inherited() {} get computed() { calls.push("computed"); return this; } }
class Thing extends Base { own = "text"; inner = { deep: 1 }; _hidden = 1 }
const thing = new Thing();
let proxied = new Proxy({}, { get: () => calls.push("get"), ownKeys: () => (calls.push("ownKeys"), []),
  getOwnPropertyDescriptor: () => calls.push("descriptor"), getPrototypeOf: () => (calls.push("prototype"), null) });
var lost = Object.create(proxied, { first: { value: 1 } });
Object.defineProperty(globalThis, "lazy", { get: () => calls.push("lazy"), configurable: true });
undefined
"""


def names(kernel, text):  # noqa: F811
    return kernel.complete(text)[1]


def test_names_and_properties(kernel):  # noqa: F811
    kernel.good(OBJECTS)
    kernel.good("import fs from 'node:fs'; import { join as joined } from 'node:path'; undefined")
    assert kernel.complete("x = thi") == (4, ["thing", "this"])
    assert kernel.complete("\u00e9; thing.in") == (10, ["inherited", "inner"])
    assert names(kernel, "thing.inner.") [0:1] == ["constructor"] and "deep" in names(kernel, "thing?.inner?.")
    assert names(kernel, "thing._h") == ["_hidden"] and "_hidden" not in names(kernel, "thing.")
    assert "computed" in names(kernel, "thing.com")
    assert names(kernel, "a\nMath.flo") == ["floor"]
    assert names(kernel, "thing.own.toUpp") == ["toUpperCase"]
    assert names(kernel, "whi") == ["while"] and names(kernel, "globalTh") == ["globalThis"]
    assert names(kernel, "fs.readFileS") == ["readFileSync"] and names(kernel, "joi") == ["joined"]
    assert names(kernel, "first.") == names(kernel, "1.") == names(kernel, "f().") == names(kernel, "thing[0].") == []


def test_nothing_of_the_program_runs(kernel):  # noqa: F811
    kernel.good(OBJECTS)
    kernel.good("""
      // The kernel itself calls them for cells, but not with these values.
      const replace = (of, name, isOfPrompt) => {
        const before = of[name];
        of[name] = function (...all) { if (isOfPrompt(this, all)) calls.push(name); return before.apply(this, all); };
      };
      const has = (it) => `${it}` === "lost.fir";
      replace(String.prototype, "startsWith", (_, [start]) => start === "fir");
      replace(String.prototype, "slice", has);
      replace(String.prototype, "lastIndexOf", has);
      replace(String.prototype, "charCodeAt", has);
      replace(Array.prototype, "sort", (it) => it[0] === "first");
      undefined""")
    for text in ["thing.computed.", "proxied.", "proxied.x.", "lost.", "lazy.", "lazy.x.", "thing.", "nothing.", "....", ""]:
        names(kernel, text)
    assert "first" in names(kernel, "lost.fir")
    assert kernel.good("calls.length") == "0"


def test_there_is_a_bound(kernel):  # noqa: F811
    kernel.good("for (let n = 0; n < 50_000; n++) globalThis[`name_${n}`] = n; const wide = new Float64Array(2e7); undefined")
    assert len(names(kernel, "name_")) == 200
    assert "length" in names(kernel, "wide.")
    kernel.good("const text = new String('x'.repeat(150_000)); const list = [1]; undefined")
    kernel.good("const inputs = (function () { return arguments; })(...Array(60_000)); undefined")
    for value in ("text", "inputs"):
        assert names(kernel, f"{value}.len") == ["length"] and names(kernel, f"{value}.hasOwn") == ["hasOwnProperty"]
    assert names(kernel, "text.toUpp") == ["toUpperCase"] and "map" in names(kernel, "list.")
    # The first keys of a large object are looked at.
    kernel.good("const large = {}; for (let n = 0; n < 100_001; n++) large[`key${n}`] = n; undefined")
    assert names(kernel, "large.key9999") == [f"key9999{n}" for n in ("", *range(10))]
    assert names(kernel, "large.key100000") == names(kernel, "large.hasOwn") == []
    kernel.good("const odd = { ['x'.repeat(10_000)]: 1, 'x y': 1, 'x\\u001b': 1, 5: 1 }; undefined")
    assert names(kernel, "odd.x") == []


def test_files_and_modules_in_strings(kernel):  # noqa: F811
    (kernel.folder / "data").mkdir()
    (kernel.folder / "data/table.csv").write_text("")
    assert kernel.complete("open('da") == (6, ["data/"])
    assert names(kernel, 'open("data/t') == ["table.csv"]
    assert "child_process" in names(kernel, "require('child_")
    assert names(kernel, "open('missing/") == []


def test_a_cell_goes_on_after_it(kernel):  # noqa: F811
    kernel.good("let value = 1; undefined")
    assert names(kernel, "val") == ["value", "valueOf"]
    assert kernel.good("value") == "1"
