"""Cells of a session in the kernel for Node.js."""

import base64
import json
import os
import statistics
import struct
import subprocess
import time

import processes
import pytest
from kernel_node import ENDED, EXITED, FAILED, INTERRUPTED, WITHIN_S, forms, kernel, running  # noqa: F401
from server import ROOT

pytestmark = pytest.mark.any_engine

TYPESCRIPT = 2
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_variables_live_on_and_can_be_declared_again(kernel):
    assert kernel.name.decode().split(".")[0].isdecimal()
    assert kernel.good("let a = 1; const b = 2; class C { x = 3 } function f() { return a + b }\nvar v = 9") is None
    assert kernel.good("[a, b, new C().x, f(), v]") == "[ 1, 2, 3, 3, 9 ]"
    assert kernel.good("let a = 10; const b = 20; class C { x = 30 }; f() + new C().x") == "60"
    assert kernel.good("a += 1; f()") == "31"
    # A declaration that failed can be repeated.
    assert kernel.run("const late = (() => { throw new Error('no') })()").kind == FAILED
    assert kernel.good("const late = 1; late") == "1"
    # Of functions with one name the last counts, also where a variable was.
    assert kernel.good("let twice = 1") is None
    assert kernel.good("twice(); function twice() { return 4 } function twice() { return 5 }") == "5"
    kernel.run("var undefined = 3")
    cell = kernel.run("let undefined = 3")
    assert (cell.kind, "names.cjs" in cell.stderr, "SyntaxError" in cell.stderr) == (FAILED, False, True), cell


# Each has cells, and what the last one shows: in a session, in the prompt of Node.js 24.19 and in the notebook kernel of
# Deno 2.9.8, if that is something else. `@` stands for a name that no other has.
TABLE = json.loads((ROOT / "tests/python/javascript_cells.json").read_text())


def named(cells, number):
    return [cell.replace("@", f"a{number}") for cell in cells]


def test_the_cells_of_the_table(kernel):
    for number, case in enumerate(TABLE):
        flags = TYPESCRIPT if case.get("typescript") else 0
        cell = [kernel.run(code, flags) for code in named(case["cells"], number)][-1]
        shown = f"error: {cell.reason}" if cell.kind == FAILED else str(cell.value)
        shown = shown.replace(f"a{number}", "@").replace(f"{kernel.folder}/main.js", "…")
        assert (case["about"], shown) == (case["about"], case["session"])


def test_the_table_says_what_the_prompt_of_node_does():
    cases = [(number, case) for number, case in enumerate(TABLE) if not case.get("typescript")]
    cells = [named(case["cells"], number) for number, case in cases]
    command = [ROOT / "scripts/node", "--file", ROOT / "tests/node/repl_cells.cjs"]
    shown = json.loads(subprocess.run(command, input=json.dumps(cells), stdout=subprocess.PIPE, check=True, text=True).stdout)
    for (number, case), text in zip(cases, shown, strict=True):
        said = text.replace(f"a{number}", "@")
        assert (case["about"], said) == (case["about"], case.get("node", case["session"]))


def test_await_works_at_the_top(kernel):
    assert kernel.good("const x = await new Promise(done => setTimeout(done, 20, 7)); x") == "7"
    assert kernel.good("for await (const y of [Promise.resolve(1), 2]) { var last = y }\nlast") == "2"
    assert kernel.good("if (true) { await null }\nx + 1") == "8"


def test_the_last_value_is_shown_as_in_the_repl(kernel):
    assert kernel.good("undefined") is None
    assert kernel.good("'text'") == "'text'"
    assert kernel.good("({ a: { b: { c: {} } }, d: { e: { f: { g: 1 } } } })") == (
        "{ a: { b: { c: {} } }, d: { e: { f: [Object] } } }"
    )
    assert kernel.good("{ a: 1, b: await 2 }") == "{ a: 1, b: 2 }"
    assert kernel.good("{ let q = 4; q }") == "4"
    assert kernel.good("{ a: 1 };") == "1"
    assert kernel.good("[-0, 10n, NaN, null, Symbol('s'), () => 1]") == (
        "[ -0, 10n, NaN, null, Symbol(s), [Function (anonymous)] ]"
    )
    assert kernel.good("-0") == "-0"
    assert kernel.good("12345678901234567890n") == "12345678901234567890n"
    assert kernel.good("null") == "null"
    assert kernel.good("`${'`'}` + /[/`'\"]/.source // a comment, with ` and '") == "'`[/`\\'\"]'"
    assert kernel.good("") is None
    assert kernel.good("#!/usr/bin/env node\n1") == "1"


def test_the_last_value_has_a_name_until_the_program_takes_it(kernel):
    kernel.good("40 + 2")
    assert kernel.good("_ + 1") == "43"
    kernel.good("undefined")
    assert kernel.good("_") == "43"
    kernel.good("_ = 'mine'; 5")
    assert kernel.good("_") == "'mine'"
    kernel.good("let _ = { mine: true }; 6")
    assert kernel.good("_") == "{ mine: true }"


def test_a_promise_as_the_last_value_is_waited_for(kernel):
    main = "async function main() { await new Promise(done => setTimeout(done, 30)); console.log('done'); return 5 }\nmain()"
    cell = kernel.run(main)
    assert (cell.kind, cell.stdout, cell.value) == (ENDED, "done\n", "5")
    assert kernel.good("_") == "5"
    assert kernel.good("Promise.resolve()") is None
    cell = kernel.run("Promise.reject(new RangeError('late'))")
    assert (cell.kind, cell.reason) == (FAILED, "RangeError: late")
    assert kernel.good("const kept = new Promise(() => {})") is None
    # Nothing can settle it, so there is nothing to wait for.
    assert kernel.good("kept") == "Promise { <pending> }"


def test_an_await_that_can_not_end_fails_at_once(kernel):
    cell = kernel.run("await new Promise(() => {})")
    assert (cell.kind, cell.code) == (FAILED, 1)
    assert cell.reason == "Error: the cell waits for a promise that nothing can settle anymore"
    assert cell.reason in cell.stderr
    # The garbage collector must not stumble over it.
    kernel.good("for (let i = 0; i < 50; i++) new ArrayBuffer(1e7)\nlet many = Array(1e6).fill().map(() => ({})); many = 0")
    assert kernel.good("1 + 1") == "2"


def test_a_cell_waits_for_what_it_has_started(kernel):
    cell = kernel.run("setTimeout(() => console.log('x'), 10); 0")
    assert (cell.kind, cell.stdout) == (ENDED, "x\n")
    cell = kernel.run("require('child_process').exec('sleep 0.1; echo child', (e, out) => console.log(out)); 0")
    assert cell.stdout == "child\n\n"
    cell = kernel.run("require('fs').readFile('/proc/self/comm', 'utf8', (e, text) => console.log(text.trim())); 0")
    assert cell.stdout == "node\n" or cell.stdout == "MainThread\n"
    cell = kernel.run("setTimeout(() => { setImmediate(() => console.log('y')) }, 10); 0")
    assert cell.stdout == "y\n"


def test_a_cell_waits_for_a_second_at_most_and_what_is_left_goes_on(kernel):
    started = time.monotonic()
    kernel.good("let ticks = 0; const ticking = setInterval(() => ticks++, 20); 0")
    assert time.monotonic() - started > 0.9
    # It is not of these cells, which do not wait for it: ten of them take less time than one that waits.
    started = time.monotonic()
    before = int(kernel.good("ticks"))
    while (ticks := int(kernel.good("ticks"))) <= before + 5:
        assert time.monotonic() - started < WITHIN_S
    assert ticks > before > 0
    started = time.monotonic()
    for _ in range(10):
        kernel.good("ticks")
    assert time.monotonic() - started < 9
    kernel.good("clearInterval(ticking)")
    # A server is no reason to wait.
    started = time.monotonic()
    kernel.good("const server = require('http').createServer((q, a) => a.end('served')).listen('/proc/self/cwd/s')\n0")
    for number in range(9):
        kernel.good(f"require('http').createServer(() => 0).listen('/proc/self/cwd/s{number}')\n0")
    assert time.monotonic() - started < 9
    get = "await new Promise(done => require('http').get({ socketPath: '/proc/self/cwd/s' }, a => a.on('data', done))) + ''"
    assert kernel.good(get) == "'served'"


def test_a_failed_cell_does_not_wait(kernel):
    started = time.monotonic()
    for _ in range(10):
        assert kernel.run("setTimeout(() => {}, 900); throw new Error('now')").kind == FAILED
    assert time.monotonic() - started < 8


def test_the_program_is_a_module_of_the_workspace(kernel, tmp_path):
    (tmp_path / "mine.js").write_text("exports.answer = 42; exports.main = require.main.filename")
    (tmp_path / "data.json").write_text('{"n": 7}')
    assert kernel.good("const { answer, main } = require('./mine'); [answer, require('./data').n]") == "[ 42, 7 ]"
    assert kernel.good("[__dirname === process.cwd(), __filename === __dirname + '/main.js', main === __filename]") == (
        "[ true, true, true ]"
    )
    assert kernel.good("[require.main === module, exports === module.exports, this === globalThis]") == "[ true, true, true ]"
    assert kernel.good("const require = 1, module = 2, exports = 3; require + module + exports") == "6"


def test_a_changed_file_is_loaded_again(kernel, tmp_path):
    (tmp_path / "part.js").write_text("module.exports = 1")
    (tmp_path / "whole.js").write_text("module.exports = [require('./part')]; globalThis.loads = (globalThis.loads ?? 0) + 1")
    (tmp_path / "part.mjs").write_text("export let n = 1; export function next() { n += 1 }")
    (tmp_path / "whole.mjs").write_text("export * from './part.mjs'; export const text = 'old'")
    (tmp_path / "other.mjs").write_text("export const kept = {}")
    (tmp_path / "d.json").write_text("[1]")
    code = "import { n, next, text } from './whole.mjs'; import { kept } from './other.mjs'; import d from './d.json' with { type: 'json' }"
    assert kernel.good(f"{code}\nkept.it = 1; [n, text, d, require('./whole.js'), require('./d.json')]") == (
        "[ 1, 'old', [ 1 ], [ 1 ], [ 1 ] ]"
    )
    # What has not changed stays, with its state.
    assert kernel.good(f"{code}\nnext(); [n, kept.it, require('./whole.js'), loads]") == "[ 2, 1, [ 1 ], 1 ]"
    (tmp_path / "part.js").write_text("module.exports = 22")
    (tmp_path / "part.mjs").write_text("export let n = 10; export function next() { n += 10 }")
    (tmp_path / "d.json").write_text("[1, 2]")
    assert kernel.good("[n, loads]") == "[ 2, 1 ]", "nothing changes before it is asked for"
    assert kernel.good("[(await import('./part.mjs')).n, require('./d.json')]") == "[ 10, [ 1, 2 ] ]"
    assert kernel.good(f"{code}\nnext(); [n, text, d, kept.it, require('./whole.js'), loads]") == (
        "[ 20, 'old', [ 1, 2 ], 1, [ 22 ], 2 ]"
    )
    # One that was wrong, or not there.
    (tmp_path / "part.mjs").write_text("export let n = ;")
    assert kernel.run("import './whole.mjs'").reason == "SyntaxError: Unexpected token ';'"
    assert "not_there" in kernel.run("import './not_there.mjs'").reason
    (tmp_path / "part.mjs").write_text("export let n = 5;")
    (tmp_path / "not_there.mjs").write_text("export const there = true")
    assert kernel.good("import { n } from './whole.mjs'; import { there } from './not_there.mjs'; [n, there]") == "[ 5, true ]"
    assert kernel.good("import { n as m } from './part.mjs?2'; [m, typeof require.resolve('./part.js')]") == "[ 5, 'string' ]"


def test_import_in_each_form(kernel, tmp_path):
    (tmp_path / "m.mjs").write_text(
        "export const a = 1, c = 3; export default 'd'; export const url = import.meta.url; globalThis.loaded = true"
    )
    (tmp_path / "d.json").write_text("[1]")
    assert kernel.good("import './m.mjs'\nloaded") == "true"
    assert kernel.good("import d, { a as b, c, 'url' as u } from './m.mjs'\n[d, b, c, u === `file://${__dirname}/m.mjs`]") == (
        "[ 'd', 1, 3, true ]"
    )
    assert kernel.good("import e, * as all from './m.mjs'; import * as again from './m.mjs'; [e, all.a, all === again]") == (
        "[ 'd', 1, true ]"
    )
    assert kernel.good("import list from './d.json' with { type: 'json' }\nlist") == "[ 1 ]"
    # In a function that is called by a later cell, and again.
    kernel.good("const get = async (name) => (await import(name)).default")
    assert kernel.good("[await get('./m.mjs'), import.meta.filename === __filename, import.meta.dirname === __dirname]") == (
        "[ 'd', true, true ]"
    )
    assert kernel.good("import.meta.resolve('./m.mjs') === `file://${__dirname}/m.mjs`") == "true"
    assert kernel.good("import fs, { existsSync } from 'node:fs'; existsSync === fs.existsSync") == "true"
    # The names follow the module, also one that was a variable or a function before.
    (tmp_path / "count.mjs").write_text("export let n = 0; export function up() { return (n += 1) }; export { n as default }")
    kernel.good("let n = 'mine'; function f() {}")
    assert kernel.good("import c, { n, up } from './count.mjs'; import { n as f } from './count.mjs'\nup(); c") == "1"
    assert kernel.good("up(); [c, n, f]") == "[ 2, 1, 1 ]"
    assert kernel.good("[c, n, f]") == "[ 2, 2, 2 ]"
    assert kernel.run("c = 5").reason == "TypeError: Assignment to constant variable."
    assert kernel.good("let c = 5; var n = 6; up(); [c, n, f]") == "[ 5, 6, 2 ]"
    # What Node.js has there stays for modules.
    assert kernel.good("import { setTimeout } from 'node:timers/promises'; await setTimeout(1, setTimeout !== globalThis.setTimeout)") == "true"
    # No import at all.
    assert kernel.good("const o = { import: 1, export: 2 }; `import 'x'` + o.import + /export/.source // import 'y'") == (
        "\"import 'x'1export\""
    )
    assert kernel.good("export const p = 1; export { p as q }; export default function r() { return 2 }\np + r()") == "3"
    assert kernel.good("export default class {}") is not None
    cell = kernel.run("\nimport { nope } from './m.mjs'")
    assert cell.reason == "SyntaxError: The requested module './m.mjs' does not provide an export named 'nope'"
    cell = kernel.run("import\n  nothing\n  from './nothing.mjs'\n")
    assert cell.reason.startswith("Error: Cannot find module") or "ERR_MODULE_NOT_FOUND" in cell.stderr
    # Lines stay where they are.
    assert "<cell 21>:4\n" in kernel.run("import {\n  a\n} from './m.mjs'\nthrow new Error('four')").stderr


def test_typescript(kernel):
    code = "interface P { n: number }\nconst p: P = { n: 4 }; enum E { A = 3 }\np.n + E.A as number"
    assert kernel.good(code, TYPESCRIPT) == "7"
    assert kernel.good("let s: string = 'again'; import type { X } from './x'\ns", TYPESCRIPT) == "'again'"
    assert kernel.run("let s: string = 1").reason.startswith("SyntaxError")
    cell = kernel.run("let n: number = 1\nlet s: = 1", TYPESCRIPT)
    assert (cell.kind, cell.reason.split(":")[0]) == (FAILED, "SyntaxError")
    assert cell.stderr.startswith("<cell 4>:2\n") and "\nlet s: = 1\n       ^\n" in cell.stderr
    # Lines and columns are those of the code, also where it was translated, and where parts of it were moved.
    cell = kernel.run("enum E { A,\n  B }\n  throw new Error('third')", TYPESCRIPT)
    assert "<cell 5>:3\n  throw new Error('third')\n        ^" in cell.stderr and "    at <cell 5>:3:9\n" in cell.stderr
    code = "/* one */ const moved = 1\nfunction s() {\n  throw new Error('third') }\n\nexport { moved as alias }\n  s()"
    assert "    at s (<cell 6>:3:9)\n    at <cell 6>:6:3\n" in kernel.run(code).stderr
    # A line of a type is a line of the code.
    assert "<cell 7>:3\n" in kernel.run("type T = {\n  n: number }\nthrow new Error('third')", TYPESCRIPT).stderr


def test_typescript_without_support_is_told(kernel):
    kernel.good("require('module').stripTypeScriptTypes = undefined")
    cell = kernel.run("let a: number = 1", TYPESCRIPT)
    assert (cell.kind, cell.reason[:42]) == (FAILED, "SyntaxError: TypeScript needs Node.js 22.1")


def test_display_shows_in_the_forms_of_an_object(kernel):
    cell = kernel.run("display({ a: 1 }, 'text'); display(undefined)")
    assert cell.shown == [
        (0, {"text/plain": b"{ a: 1 }"}),
        (0, {"text/plain": b"'text'"}),
        (0, {"text/plain": b"undefined"}),
    ]
    forms = "{ 'text/html': '<b>é</b>', 'text/plain': 'b', 'application/json': { n: [1] }, 'text/other': 'no', 'image/png': '%s' }"
    forms %= base64.b64encode(PNG).decode()
    shown = {"text/html": "<b>é</b>".encode(), "text/plain": b"b", "application/json": b'{"n":[1]}', "image/png": PNG}
    kernel.good("const bundle = " + forms + "; const shows = { [Symbol.for('Jupyter.display')]: () => bundle }")
    assert kernel.run("display(shows)").shown == [(0, shown)]
    cell = kernel.run("shows")
    assert cell.shown == [(1, shown)]
    assert list(cell.shown[0][1]) == list(shown)
    # One that takes time is waited for.
    later = "({ async [Symbol.for('Jupyter.display')]() { await new Promise(done => setTimeout(done, 30)); return bundle } })"
    assert kernel.run(f"display{later}").shown == [(0, shown)]
    assert kernel.run(later).shown == [(1, shown)]
    # One that says nothing useful is shown as any other.
    assert kernel.good("({ [Symbol.for('Jupyter.display')]: () => ({ 'text/other': 1 }), n: 1 })").count("n: 1")
    cell = kernel.run("({ [Symbol.for('Jupyter.display')]() { throw new Error('hidden') } })")
    assert (cell.kind, cell.reason) == (FAILED, "Error: hidden")
    cell = kernel.run("({ async [Symbol.for('Jupyter.display')]() { throw new Error('hidden') } })")
    assert (cell.kind, cell.reason) == (FAILED, "Error: hidden")


def test_display_shows_bytes_as_the_picture_that_they_are(kernel, tmp_path):
    (tmp_path / "p.png").write_bytes(PNG)
    kernel.good("const png = require('fs').readFileSync('p.png')")
    ((flag, forms),) = kernel.run("display(png)").shown
    assert (flag, forms["image/png"]) == (0, PNG)
    assert kernel.run("display(new Uint8Array(png))").shown[0][1]["image/png"] == PNG
    assert kernel.run("display(Buffer.from('ffd8ffe000', 'hex'))").shown[0][1]["image/jpeg"] == bytes.fromhex("ffd8ffe000")
    assert list(kernel.run("display(Buffer.from('GIF'))").shown[0][1]) == ["text/plain"]
    assert list(kernel.run("png").shown[0][1]) == ["text/plain"]


def test_what_is_shown_has_limits(kernel):
    value = kernel.good("Array(90).fill('é'.repeat(2000))")
    assert len(value.encode()) <= 64 * 1024
    assert value.endswith("\n… (the rest was left out)")
    cell = kernel.run(
        "display({ [Symbol.for('Jupyter.display')]: () => ({ 'text/html': 'x'.repeat(524289), 'text/markdown': 'y'.repeat(4 << 20),"
        " 'text/plain': 'é'.repeat(40000), 'text/latex': 'z'.repeat((4 << 20) + 1) }) })"
    )
    ((_, forms),) = cell.shown
    assert {name: len(content) for name, content in forms.items()} == {"text/markdown": 4 << 20, "text/plain": 64 << 10}
    # One form too many costs only itself, and never the text.
    bundle = "'image/svg+xml': 'a'.repeat(4 << 20), 'text/latex': 'b'.repeat(4 << 20), 'text/html': 'c'.repeat(1 << 19), 'text/plain': 'text'"
    cell = kernel.run(f"display({{ [Symbol.for('Jupyter.display')]: () => ({{ {bundle} }}) }})")
    ((_, forms),) = cell.shown
    assert {name: len(content) for name, content in forms.items()} == {"image/svg+xml": 4 << 20, "text/html": 1 << 19, "text/plain": 4}


BIG = "const big = { [Symbol.for('Jupyter.display')]: () => ({ 'text/html': 'x'.repeat(500000) }) };"
MEMORY = "process.memoryUsage().arrayBuffers"


def test_what_a_cell_shows_without_a_pause_takes_no_memory(kernel):
    cell = kernel.run(f"{BIG}\nfor (let n = 0; n < 400; n++) display(big)\n{MEMORY}")
    assert (cell.kind, len(cell.shown)) == (ENDED, 401), cell.stderr
    assert int(cell.value) < 50_000_000
    # The runner reads nothing between cells, and takes less than is kept for it.
    kernel.good("let shown = 0\nconst timer = setInterval(() => { display(big); shown += 1 }, 1).unref(); 0")
    time.sleep(1)
    kernel.announce(f"clearInterval(timer); [shown > 20, {MEMORY} < 50_000_000]")
    size = 0
    while (message := kernel.message())[0] == b"d":
        size += len(message[1])
    assert message == (b"s", b"\x08") and 1 << 20 < size < 5 << 20, size
    kernel.go()
    while (message := kernel.message())[0] == b"d":
        found = forms(message[1][1:])
    assert message == (b"e", bytes(5)) and found == {"text/plain": b"[ true, true ]"}
    assert "things that were shown between the cells are missing" in kernel.printed(kernel.pipes[1])


def test_code_that_shows_without_a_pause_can_be_interrupted(kernel):
    kernel.send(f"{BIG}\nconsole.log('go')\nfor (;;) display(big)")
    kernel.message()
    kernel.wait_for("go\n")
    # It waits for a reader.
    time.sleep(0.2)
    kernel.interrupt()
    while (message := kernel.message())[0] == b"d":
        pass
    assert message == (b"e", struct.pack(">Bi", INTERRUPTED, 130))
    assert kernel.printed(kernel.pipes[1]) == "Interrupted\n"
    # Between cells nothing waits for a reader.
    kernel.good("setTimeout(() => { for (let n = 0; n < 5; n++) display(big); console.log('shown') }, 50).unref(); 0")
    kernel.wait_for("shown\n")


def test_an_import_that_can_not_be_read_again_fails_no_other_cell(kernel, tmp_path):
    (tmp_path / "then.mjs").write_text(
        "let isBad = false; const it = { bad() { isBad = true }, get x() { if (isBad) throw new Error('no'); return 1 } };"
        " export const then = (resolve) => resolve(it); delete it.then"
    )
    (tmp_path / "count.mjs").write_text("export let n = 0; export function up() { return (n += 1) }")
    kernel.good("let x; function f() {}")
    kernel.good("import { x, bad } from './then.mjs'; import { n as f, up } from './count.mjs'; bad(); x")
    assert kernel.good("2 + 2") == "4"
    kernel.good("up(); Object.freeze(globalThis); 0")
    assert kernel.good("[x, f]") == "[ 1, 0 ]"
    # What the program makes impossible for a declaration is the error of its cell.
    cell = kernel.run("let up = 5")
    assert (cell.kind, cell.reason.split(":")[0]) == (FAILED, "TypeError"), cell.stderr
    assert kernel.good("'after'") == "'after'"


@pytest.mark.parametrize("comment", ["/**/", "//\n", "/*//*/", "/***/ "])
def test_many_comments_take_no_time(kernel, comment):
    began = time.monotonic()
    kernel.good(f"export {comment * 5000}default 5")
    assert kernel.good(f"({{ a: 1 }}{comment.replace(chr(10), '')}\n).a") == "1"
    assert kernel.good(f"{{ a: 1 }}{comment.replace('//' + chr(10), ' ') * 5000}.a") == "1"
    assert time.monotonic() - began < 5


def test_standard_input_is_at_its_end(kernel):
    cell = kernel.run("require('readline').createInterface({ input: process.stdin }).on('close', () => console.log('closed')); 0")
    assert (cell.kind, cell.stdout) == (ENDED, "closed\n")
    assert kernel.good("require('fs').readFileSync(0, 'utf8')") == "''"
    assert kernel.good("let text = ''; for await (const chunk of process.stdin) text += chunk\ntext") == "''"


def test_all_output_comes_before_the_end_of_the_cell(kernel):
    assert kernel.run("console.log('out'); process.stdout.write('more')").stdout == "out\nmore"
    assert kernel.run("console.error('err')").stderr == "err\n"
    kernel.send("process.stdout.write('x'.repeat(3 << 20)); console.log('end')")
    kernel.message()
    # The pipe is full, and is not read for a while.
    time.sleep(0.2)
    read = 0
    ends_at = time.monotonic() + WITHIN_S
    while read < (3 << 20) + 4:
        assert time.monotonic() < ends_at
        read += len(kernel.printed(kernel.pipes[0]))
        time.sleep(0.001)
    kind, _ = kernel.message()
    while kind == b"d":
        kind, _ = kernel.message()
    assert kind == b"e"


def test_a_program_that_replaces_everything_does_not_break_the_kernel(kernel):
    kernel.good(
        """
        process.removeAllListeners();
        process.setUncaughtExceptionCaptureCallback(null);
        const bad = () => { throw new Error('replaced') };
        console.log = console.error = process.stdout.write = process.stderr.write = bad;
        globalThis.Promise = globalThis.Map = globalThis.WeakMap = globalThis.Set = bad;
        JSON.stringify = JSON.parse = Buffer.from = Buffer.alloc = Buffer.concat = bad;
        Promise.prototype = null;
        globalThis.setTimeout = globalThis.setImmediate = globalThis.clearTimeout = globalThis.queueMicrotask = bad;
        require('fs').writeSync = require('util').inspect = require('vm').Script = bad;
        Object.keys = Object.entries = Object.defineProperty = Reflect.apply = Atomics.wait = bad;
        process.reallyExit = process.binding = process.emit = process._tickCallback = process.getActiveResourcesInfo = bad;
        process.hrtime = process.cwd = bad;
        0
        """
    )
    assert kernel.good("let a = 1; a + 1") == "2"
    assert kernel.good("await (async () => 3)()") == "3"
    cell = kernel.run("null.x")
    assert (cell.kind, cell.stderr.split("\n")[0]) == (FAILED, "<cell 4>:1")
    assert kernel.run("Symbol.x.y").kind == FAILED
    assert kernel.good("display('shown'); delete globalThis.setTimeout; 4") == "4"
    assert kernel.good("Object.freeze(globalThis); 5") == "5"
    assert kernel.good("6") == "6"


@pytest.mark.parametrize("broken", ["process.env = Object.freeze({ OWN: '1' })", "process.env = null", "Object.defineProperty(process, 'env', { get() { throw 1 } })"])
def test_variables_of_a_cell_are_set_for_it_alone_and_an_environment_that_takes_none_stops_no_cell(kernel, broken):
    variables = ["A=1", "PATH=/x=y"]
    assert kernel.run("process.env.A + process.env.PATH", variables=variables).value == "'1/x=y'"
    assert kernel.good("[process.env.A, process.env.PATH.includes('=')]") == "[ undefined, false ]"
    # Broken while they are set, and before.
    cell = kernel.run(f"{broken}; 5", variables=variables)
    assert (cell.kind, cell.value, cell.stderr) == (ENDED, "5", "")
    cell = kernel.run("6", variables=variables)
    assert (cell.kind, cell.value) == (ENDED, "6")
    assert cell.stderr.startswith("The variables for this cell could not be set: "), cell
    assert kernel.good("7") == "7"


def test_then_of_promises_may_be_replaced(kernel):
    kernel.good("Promise.prototype.then = () => { throw new Error('replaced') }; 0")
    assert kernel.good("await 1; 2") == "2"
    assert kernel.good("(async () => 3)()") == "3"


def test_the_program_does_not_see_the_kernel(kernel, tmp_path):
    assert kernel.good("process.argv.slice(1).join() === __filename && process.argv.length") == "2"
    assert kernel.good("Object.keys(require.cache)") == "[]"
    assert kernel.good("require('inspector').url()") is None
    assert kernel.good("process._getActiveHandles().filter(h => h !== process.stdout && h !== process.stderr)") == "[]"
    assert kernel.good("process._getActiveRequests()") == "[]"
    assert kernel.good("process.listenerCount('SIGINT') + process.listenerCount('exit')") == "0"
    names = "JSON.stringify(Object.keys(globalThis).sort())"
    (tmp_path / "names.js").write_text(f"console.log({names})")
    plain = subprocess.check_output([ROOT / "scripts/node", "--file", tmp_path / "names.js"], text=True)
    assert kernel.good(names) == f"'{plain.strip()}'"
    # A program may use its own inspector and hooks.
    code = (
        "const s = new (require('inspector').Session)(); s.connect();"
        "const r = await new Promise(done => s.post('Runtime.evaluate', { expression: '6 * 7' }, (e, v) => done(v.result.value)));"
        "s.disconnect(); r"
    )
    assert kernel.good(code) == "42"
    kernel.good("let made = 0; const hook = require('async_hooks').createHook({ init() { made++ } }).enable()")
    assert int(kernel.good("await Promise.resolve(); made")) > 0
    kernel.good("hook.disable()")


def test_cells_that_come_early_are_run_in_order(kernel):
    kernel.send("await new Promise(done => setTimeout(done, 50)); 'first'")
    kernel.send("'second'")
    assert [kernel.result().value, kernel.result().value] == ["'first'", "'second'"]


def test_a_cell_that_comes_in_pieces(kernel):
    code = "'" + "é" * 200_000 + "'.length"
    payload = struct.pack(">IB", 1, 0) + code.encode()
    message = struct.pack(">cI", b"C", len(payload)) + payload
    for begin in range(0, len(message), 65536):
        kernel.channel.sendall(message[begin : begin + 65536])
        time.sleep(0.002)
    kernel.go()
    assert kernel.result().value == "200000"


def test_code_runs_when_the_runner_lets_it_and_nothing_else_runs_before(kernel):
    kernel.good("const ticks = setInterval(() => console.log('tick'), 1).unref(); 0")
    kernel.announce("console.log('ran'); clearInterval(ticks)")
    assert kernel.message() == (b"s", b"\x08")
    kernel.printed(kernel.pipes[0])
    time.sleep(0.2)
    assert kernel.printed(kernel.pipes[0]) == ""
    kernel.go()
    kernel.wait_for("ran\n")
    assert kernel.message()[0] == b"e"


def test_a_cell_begins_after_more_was_shown_than_the_runner_has_read(kernel):
    kernel.good("setTimeout(() => { for (let n = 0; n < 2000; n++) display('x'.repeat(1000)); console.log('shown') }, 50).unref(); 0")
    kernel.wait_for("shown\n")
    kernel.announce("console.log('ran')")
    shown = []
    while (message := kernel.message())[0] == b"d":
        shown.append(forms(message[1][1:])["text/plain"])
    assert message == (b"s", b"\x08")
    assert shown == [b"'" + b"x" * 1000 + b"'"] * 2000
    time.sleep(0.2)
    assert kernel.printed(kernel.pipes[0]) == ""
    kernel.go()
    kernel.wait_for("ran\n")
    assert kernel.message()[0] == b"e"


def test_the_thousandth_cell_is_like_the_first(kernel):
    kernel.good("let x = 0")
    times = []
    for _ in range(1000):
        started = time.perf_counter()
        kernel.good("x += 1")
        times.append(time.perf_counter() - started)
    assert kernel.good("x") == "1000"
    assert statistics.median(times[-100:]) < 0.005
    before = processes.status(kernel.process.pid, "VmRSS")
    for _ in range(3000):
        kernel.good("x += 1; const y = { x }; class C {}; y")
    assert processes.status(kernel.process.pid, "VmRSS") - before < 40 * 1024
    assert len(os.listdir(f"/proc/{kernel.process.pid}/task")) < 16


def test_an_end_of_the_channel_ends_a_session_that_is_busy(tmp_path):
    with running(tmp_path) as kernel:
        kernel.good("process.on('exit', () => console.log('exit')); setInterval(() => {}, 10); 0")
        kernel.send("await new Promise(done => setTimeout(done, 1e6))")
        kernel.message()
        time.sleep(0.1)
        kernel.channel.close()
        kernel.process.wait(WITHIN_S)
        assert [kernel.printed(pipe) for pipe in kernel.pipes] == ["", ""]


def test_cells_that_wait_share_one_thread_which_goes_away(kernel):
    def threads():
        return len(os.listdir(f"/proc/{kernel.process.pid}/task"))

    kernel.good("await new Promise(done => setTimeout(done, 100))")
    before = threads()
    for _ in range(50):
        kernel.good("await new Promise(done => setTimeout(done, 1))")
    assert threads() == before
    ends_at = time.monotonic() + WITHIN_S
    while threads() >= before:
        assert time.monotonic() < ends_at
        time.sleep(0.05)
    assert kernel.good("1") == "1"


def test_children_do_not_inherit_the_channel(kernel):
    sockets = "ls -l /proc/self/fd | grep -c socket: || true"
    options = "{ stdio: ['ignore', 'pipe', 'inherit'] }"
    assert kernel.good(f"require('child_process').execSync({sockets!r}, {options}).toString().trim()") == "'0'"
