"""How a cell of a session ends in Node.js: errors, exits and interruptions."""

import signal
import threading
import time

import pytest
from kernel_node import ENDED, EXITED, FAILED, INTERRUPTED, kernel, running  # noqa: F401

pytestmark = pytest.mark.any_engine


def test_errors_show_the_line_of_the_cell_and_no_kernel(kernel):
    kernel.good("function inner(x) {\n  return x.name.first\n}")
    cell = kernel.run("const value = 1\n  inner(value)")
    assert (cell.kind, cell.code) == (FAILED, 1)
    assert cell.reason == "TypeError: Cannot read properties of undefined (reading 'first')"
    assert cell.stderr == (
        "<cell 1>:2\n  return x.name.first\n                ^\n\n"
        "TypeError: Cannot read properties of undefined (reading 'first')\n"
        "    at inner (<cell 1>:2:17)\n    at <cell 2>:2:3\n"
    )
    cell = kernel.run("const deep = () => new Error('e').stack\nconsole.log(deep())")
    assert cell.stdout == "Error: e\n    at deep (<cell 3>:1:20)\n    at <cell 3>:2:13\n"
    cell = kernel.run("async function g() { await null; null.x }\nasync function h() { await g() }\nawait h()")
    assert "    at g (<cell 4>:1:39)\n" in cell.stderr
    assert "    at async h (<cell 4>:2:22)\n" in cell.stderr
    for code in ("setTimeout(() => { throw new Error('timer') }, 5)", "[1].map(() => { throw new Error('map') })"):
        cell = kernel.run(code)
        assert cell.kind == FAILED
        assert "kernel" not in cell.stderr and "node:vm" not in cell.stderr and "session" not in cell.stderr


def test_errors_of_each_kind(kernel):
    cell = kernel.run("throw new Error('outer', { cause: new TypeError('inner') })")
    assert cell.reason == "Error: outer"
    assert "[cause]: TypeError: inner" in cell.stderr
    cell = kernel.run("throw new AggregateError([new Error('one'), new RangeError('two')], 'both')")
    assert cell.reason == "AggregateError: both"
    assert "Error: one" in cell.stderr and "RangeError: two" in cell.stderr
    for thrown, shown in (("5", "5"), ("'text'", "'text'"), ("{ a: 1 }", "{ a: 1 }"), ("null", "null"), ("undefined", "undefined")):
        cell = kernel.run(f"throw {thrown}")
        assert (cell.kind, cell.reason, cell.stderr) == (FAILED, f"Uncaught {shown}", f"Uncaught {shown}\n")
    cell = kernel.run("class Own extends Error { name = 'Own'; get message() { throw new Error('hostile') } }\nthrow new Own()")
    assert cell.kind == FAILED and cell.reason
    cell = kernel.run("throw { get stack() { throw 1 }, [Symbol.for('nodejs.util.inspect.custom')]() { throw 2 } }")
    assert (cell.kind, cell.reason) == (FAILED, "Uncaught [a value that can't be shown]")
    cell = kernel.run("throw new Proxy({}, { get() { throw 3 }, getPrototypeOf() { throw 4 } })")
    assert cell.kind == FAILED
    cell = kernel.run("function again() { again() }\nagain()")
    assert cell.reason == "RangeError: Maximum call stack size exceeded"
    cell = kernel.run("require('fs').readFileSync('/nothing')")
    assert cell.reason == "Error: ENOENT: no such file or directory, open '/nothing'"
    assert kernel.good("1") == "1"


def test_syntax_errors_show_where(kernel):
    cell = kernel.run("let a = 1\nlet b = ;\n")
    assert (cell.kind, cell.reason) == (FAILED, "SyntaxError: Unexpected token ';'")
    assert cell.stderr == "<cell 1>:2\nlet b = ;\n        ^\n\nSyntaxError: Unexpected token ';'\n"
    assert kernel.run("typeof a").value == "'undefined'", "nothing of it has run"
    for code in ("{", "`", "/* never ends", "import from", "a b", "return 1", "let q = 1; let q = 2", "'", "import {"):
        cell = kernel.run(code)
        assert (cell.kind, cell.reason.split(":")[0]) == (FAILED, "SyntaxError"), code
    cell = kernel.run("JSON.parse('{')\n")
    assert cell.reason.startswith("SyntaxError: ") and "<cell 12>:1\nJSON.parse('{')\n" in cell.stderr


def test_what_v8_can_not_declare_fails_with_its_reason(kernel):
    kernel.good("let q = 1; const c = 1")
    assert kernel.good("label: function q() { return 6 }\nq()") == "6"
    kernel.good("Object.preventExtensions(globalThis); 0")
    for code in ("var frozen = 1", "function frozen() {}"):
        cell = kernel.run(code)
        assert (cell.kind, cell.reason) == (FAILED, "TypeError: Cannot add property frozen, object is not extensible")
    assert kernel.good("let slot = 5; slot") == "5"
    cell = kernel.run("await new Promise((done) => require('readline').createInterface(process.stdin).question('name? ', done))")
    assert cell.reason.endswith("nothing can settle anymore; standard input has ended, so no question is answered")


def test_constants_are_those_that_an_assignment_means(kernel):
    kernel.good("const c = 1; let async = 1")
    assert kernel.good("const o = { c: 1 }; with (o) { c = 7 }\n[o.c, c]") == "[ 7, 1 ]"
    for code in ("((x = () => { c = 1 }) => { var c; x() })()", "(function (x = (c = 2)) {})()", "label: { c = 3 }"):
        assert kernel.run(code).reason == "TypeError: Assignment to constant variable.", code
    for code in ("(() => { var c; c = 3 })()", "((c) => { c = 3 })()", "class K { static { var c; c = 4 } }", "(() => { x: function c() {} c = 5 })()"):
        kernel.good(code)
    assert kernel.good("for (var async of [3]);\nasync") == "3"


def test_a_block_is_an_object_only_if_nothing_follows_it(kernel):
    kernel.good("let x = 1")
    for code, value in {
        "{ x }": "{ x: 1 }",
        "{ x }\n[1, 2].map((it) => it)": "[ 1, 2 ]",
        "{ x } // a block\n(x)": "1",
        "{ a: 1 }.a": "1",
        "{ a: await 3, b: 2 }\n": "{ a: 3, b: 2 }",
        "{ x } = { x: 9 }": "{ x: 9 }",
        "{ let y = 5; y }": "5",
    }.items():
        assert kernel.good(code) == value, code


def test_an_uncaught_error_fails_the_cell_and_the_session_continues(kernel):
    cell = kernel.run("Promise.reject(new TypeError('nobody')); 1")
    assert (cell.kind, cell.reason, cell.value) == (FAILED, "TypeError: nobody", "1")
    assert "TypeError: nobody\n    at <cell 1>:1:16\n" in cell.stderr
    cell = kernel.run("process.nextTick(() => { throw new Error('tick') }); queueMicrotask(() => { throw new Error('task') })")
    assert cell.kind == FAILED and "tick" in cell.stderr and "task" in cell.stderr
    cell = kernel.run(
        "setTimeout(() => { throw new Error('in between') }, 10); await new Promise(done => setTimeout(done, 50)); 'end'"
    )
    assert (cell.kind, cell.reason, cell.value) == (FAILED, "Error: in between", "'end'")
    assert kernel.good("Promise.reject(1).catch(() => {}); 'caught'") == "'caught'"
    # Between cells: printed, and no later cell's fault.
    kernel.good("setTimeout(() => { throw new Error('later') }, 1300); 0")
    time.sleep(0.6)
    assert "Error: later" in kernel.printed(kernel.pipes[1])
    assert kernel.good("1") == "1"


def test_the_program_may_catch_all_errors_by_itself(kernel):
    kernel.good("process.on('uncaughtException', (error) => console.log('mine', error.message)); 0")
    cell = kernel.run("setTimeout(() => { throw new Error('a') }, 5); Promise.reject(new Error('b')); 0")
    assert (cell.kind, cell.stdout, cell.stderr) == (ENDED, "mine b\nmine a\n", "")
    kernel.good("process.removeAllListeners('uncaughtException'); 0")
    kernel.good("process.on('unhandledRejection', (reason) => console.log('rejected', reason)); 0")
    assert kernel.run("Promise.reject('c'); 0").stdout == "rejected c\n"


def test_exit_ends_the_cell_and_not_the_session(kernel):
    kernel.good("let kept = 1")
    cell = kernel.run(
        "try { console.log('a'); kept = 2; process.exit(3) } catch { console.log('b') } finally { console.log('c') }"
        "\nconsole.log('d')"
    )
    assert (cell.kind, cell.code, cell.stdout) == (EXITED, 3, "a\n")
    assert kernel.good("kept") == "2"
    cell = kernel.run("await null; await new Promise(() => setTimeout(() => process.exit(4), 5))")
    assert (cell.kind, cell.code) == (EXITED, 4)
    cell = kernel.run("(async () => { await null; process.exit(5) })(); await new Promise(done => setTimeout(done, 1e6))")
    assert (cell.kind, cell.code) == (EXITED, 5)
    kernel.good("const { AsyncResource } = require('async_hooks')")
    cell = kernel.run("new AsyncResource('A').runInAsyncScope(() => process.exit(6))")
    assert (cell.kind, cell.code) == (EXITED, 6)
    cell = kernel.run("setImmediate(() => new AsyncResource('B').runInAsyncScope(() => process.exit()))")
    assert (cell.kind, cell.code) == (EXITED, 0)
    cell = kernel.run("process.exitCode = 7; 0")
    assert (cell.kind, cell.code) == (EXITED, 7)
    cell = kernel.run("process.exitCode = 8; process.exit()")
    assert (cell.kind, cell.code) == (EXITED, 8)
    assert kernel.good("[process.exitCode, kept]") == "[ undefined, 2 ]"
    assert kernel.run("process.exit('no number')").kind == FAILED
    assert kernel.good("kept") == "2"


def test_an_exit_between_cells_ends_only_what_calls_it(kernel):
    # A cell waits for a second for what it has started.
    kernel.good("setTimeout(() => process.exit(3), 1100); let kept = 1")
    time.sleep(0.5)
    assert kernel.good("await new Promise((end) => setTimeout(end, 20)); [process.exitCode, kept]") == "[ undefined, 1 ]"


@pytest.mark.parametrize(
    ("code", "status"), [("process.reallyExit(9)", 9), ("process.abort()", -signal.SIGABRT), ("process.kill(process.pid, 9)", -9)]
)
def test_what_ends_the_process_ends_the_session(tmp_path, code, status):
    with running(tmp_path, status=status) as kernel:
        kernel.send(code)
        with pytest.raises((EOFError, ConnectionResetError)):
            kernel.result()


def test_a_full_heap_ends_the_process(tmp_path):
    with running(tmp_path, "--max-old-space-size=40", status=-signal.SIGABRT) as kernel:
        kernel.send("const all = []; for (;;) all.push(new Array(1000).fill(0))")
        with pytest.raises((EOFError, ConnectionResetError)):
            kernel.result()


GO = "console.log('go'); "
ENDLESS = {
    "loop": GO + "while (true);",
    "loop that catches": GO + "for (;;) { try { for (;;); } catch {} finally { continue } }",
    "await": GO + "await new Promise(done => setTimeout(done, 1e6))",
    "wait": GO + "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
    "microtasks": "async function f() { for (;;) await null }\n" + GO + "await f()",
    "ticks": "function tick() { process.nextTick(tick) }\ntick(); " + GO,
    "loop after await": "await new Promise(done => setTimeout(done, 100)); " + GO + "for (;;);",
    "microtasks after await": "async function g() { for (;;) await null }\n"
    "await new Promise(done => setTimeout(done, 100)); " + GO + "await g()",
    "loop in timer": "setTimeout(() => { " + GO + "for (;;); }, 50)",
    "loop in immediate": "for (let i = 0; i < 3; i++) setImmediate(() => { " + GO + "for (;;); })",
    "loop in scope": "var { AsyncResource } = require('async_hooks'); "
    "setTimeout(() => new AsyncResource('A').runInAsyncScope(() => { " + GO + "for (;;); }), 50)",
    "wait in timer": "setTimeout(() => { " + GO + "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0) }, 50)",
    "regular expression": GO + "/^(a+)+$/.test('a'.repeat(60) + 'b')",
    "what shows the value": GO + "({ [Symbol.for('nodejs.util.inspect.custom')]() { for (;;); } })",
}


@pytest.mark.parametrize("what", ENDLESS)
def test_interruptions(kernel, what):
    kernel.good("let kept = 5")
    kernel.interrupted(ENDLESS[what])
    assert kernel.good("kept") == "5"
    # And again, also without a moment in between.
    kernel.interrupted(ENDLESS[what])
    assert kernel.good("await new Promise(done => setTimeout(done, 5, kept))") == "5"


def test_interruptions_between_cells_do_nothing(kernel):
    kernel.good("let kept = 6")
    for _ in range(20):
        kernel.interrupt()
    time.sleep(0.05)
    assert kernel.good("kept") == "6"
    kernel.good("const ticking = setInterval(() => {}, 10)")
    kernel.interrupt()
    time.sleep(0.2)
    assert kernel.good("clearInterval(ticking); kept") == "6"
    kernel.interrupted("console.log('go'); for (;;);")
    assert kernel.good("kept") == "6"


def test_interruptions_at_any_moment_leave_the_session_usable(kernel):
    kernel.good("let count = 0")
    stop = threading.Event()

    def interrupt_often():
        while not stop.wait(0.0013):
            kernel.interrupt()

    thread = threading.Thread(target=interrupt_often)
    thread.start()
    try:
        kinds = {kernel.run("count++; for (let i = 0; i < 3e5; i++);").kind for _ in range(100)}
        kinds |= {kernel.run("await new Promise(done => setTimeout(done, 2)); count++").kind for _ in range(20)}
    finally:
        stop.set()
        thread.join()
    assert kinds <= {ENDED, INTERRUPTED} and INTERRUPTED in kinds
    time.sleep(0.3)
    kernel.printed(kernel.pipes[1])
    assert 1 <= int(kernel.good("count")) <= 120


def test_a_function_of_the_program_for_interruptions(kernel):
    kernel.good("process.on('SIGINT', () => console.log('mine')); 0")
    cell = kernel.interrupted("console.log('go'); await new Promise(done => setTimeout(done, 1e6))")
    assert cell.stdout == "mine\n"
    kernel.interrupted("console.log('go'); for (;;);")
    kernel.good("process.removeAllListeners('SIGINT'); 0")
    kernel.interrupt()
    # A thread of Node.js takes it, and needs a moment.
    time.sleep(0.2)
    kernel.interrupted("console.log('go'); for (;;);")
    assert kernel.good("1") == "1"


def test_a_cell_that_interrupts_itself(kernel):
    """As process.kill() does it for every process."""
    kernel.good("let kept = 1")
    for code in (
        "process.kill(process.pid, 'SIGINT'); await new Promise(done => setTimeout(done, 1e6))",
        "await null; process.kill(process.pid, 2); for (;;);",
        "await new Promise(() => setTimeout(() => process.kill(process.pid, 'SIGINT'), 5))",
        "process.once('SIGINT', () => console.log('told')); process.kill(process.pid, 'SIGINT')",
    ):
        cell = kernel.run(code)
        assert (cell.kind, cell.code) == (INTERRUPTED, 130), (code, cell.stderr)
        assert kernel.good("kept") == "1"
    assert cell.stdout == "told\n"
    assert kernel.good("process.kill(process.pid, 0)") == "true"


@pytest.mark.parametrize("left", ["setTimeout(() => { while (true); }, 1200)", "setInterval(() => { while (true); }, 1200)"])
def test_a_loop_that_a_cell_has_left_is_interrupted_when_the_next_cell_comes(kernel, left):
    assert kernel.run(left).kind == ENDED
    time.sleep(0.5)
    kernel.send("'next'")
    time.sleep(0.2)
    kernel.interrupt()
    cell = kernel.result()
    assert (cell.kind, cell.value) == (ENDED, "'next'"), cell
