"""Programs run through the official client, and what comes back to the byte."""

import time
import uuid

import anyio
import jsonschema
import pytest
from programs import BOTH_STREAMS, ECHO, HELLO
from server import receipt, until

LANGUAGES = list(HELLO)


def text(result):
    (block,) = result.content
    assert block.type == "text"
    return block.text


def stdout(result):
    assert not result.is_error, text(result)
    return result.structured_content["stdout"]


@pytest.fixture
async def output_schema(server):
    tools = (await server.client.list_tools()).tools
    return next(tool.output_schema for tool in tools if tool.name == "execute_code")


@pytest.mark.every_server
@pytest.mark.parametrize("language", LANGUAGES)
async def test_hello_comes_back_byte_for_byte(server, output_schema, language):
    result = await server.call(language=language, entrypoint_code=HELLO[language])
    assert text(result) == "--- stdout ---\nHello, Wörld!\n\n--- stderr ---\n"
    assert result.is_error is False
    data = result.structured_content
    jsonschema.validate(data, output_schema)
    assert (data["status"], data["exit_code"]) == ("success", 0)
    assert (data["stdout"], data["stderr"]) == ("Hello, Wörld!\n", "")
    assert receipt(result)["start"] in {"hot", "warm", "cold", "queued"}
    assert receipt(result)["image"].startswith("sha256:")


@pytest.mark.any_engine
@pytest.mark.parametrize("language", LANGUAGES)
async def test_both_streams_come_back(server, language):
    result = await server.call(language=language, entrypoint_code=BOTH_STREAMS[language])
    assert text(result) == "--- stdout ---\nout\n\n--- stderr ---\nerr"


@pytest.mark.parametrize("language", LANGUAGES)
async def test_arguments_files_and_standard_input_reach_the_program(server, language):
    result = await server.call(
        language=language,
        entrypoint_code=ECHO[language],
        additional_files=[{"filename": "data/in.txt", "content": "from a file"}],
        args=["a b", "ü"],
        stdin="from stdin\n",
    )
    assert stdout(result) == "['a b', 'ü']|from a file|from stdin\n"


ADVICE = {
    "nothing to read": ("python", "print(input('name? '))", "send all that it reads as stdin"),
    "too little to read": ("python", "print(input(), input())", "send all that it reads as stdin"),
    "a question in a browser": ("javascript", "prompt('name?')", "send input as stdin"),
    "a file of an earlier call": ("python", "open('/mnt/data/x.csv')", 'no file or folder "/mnt/data/x.csv": each run begins with only'),
    "a file under another path": (
        "python",
        "import pandas\npandas.read_csv('/mnt/data/x.csv')",
        'the call has the file "d/x.csv": open it by that name',
        {"/workspace/d/x.csv": "a"},
    ),
    "a folder that is not there": ("python", "open('out/a.csv', 'w')", "a folder has to be made before"),
    "a file of an earlier call in JavaScript": ("javascript", "require('fs').readFileSync('x')", 'here "main.js"; send the file in'),
    "a file of an earlier call in Go": (
        "go",
        'package main\nimport ("log"; "os")\nfunc main() { _, err := os.Open("x"); log.Fatal(err) }',
        'no file or folder "x"',
    ),
    "a place that can't be written": ("python", "open('/x', 'w')", "can write to its working directory, /workspace, and to /tmp"),
    "a place that can't be written in JavaScript": ("javascript", "require('fs').writeFileSync('/x', '')", "and to /tmp"),
    "a database elsewhere": ("python", "import sqlite3\nsqlite3.connect('/x')", "in the working directory or in /tmp"),
    "pip as code": ("python", "pip install x", 'line 1, "pip install x", is a command for a shell, not python: leave it out; nothing can'),
    "npm as code": ("javascript", "npm install x", "is a command for a shell, not javascript"),
    "ensurepip": ("python", "import subprocess, sys\nsubprocess.check_call([sys.executable, '-m', 'ensurepip'])", "nothing can be installed"),
    "parquet": ("python", "import pandas\npandas.DataFrame({'a': [1]}).to_parquet('a')", "'pyarrow' is not in the image"),
    "what notebooks display": ("python", "display(1)", "'display' is only there in notebooks and sessions"),
    "a loop in a loop": (
        "python",
        "import asyncio\nasync def f(): asyncio.run(g())\nasync def g(): ...\nasyncio.run(f())",
        "use await instead of asyncio.run",
    ),
    "a page of a browser": ("javascript", "document.title", "'document' is only there in browsers"),
    "no program in Go": ("go", "fmt.Println(1)", "begins with the line `package main`"),
    "no beginning in Go": ("go", "package main\nfunc f() {}", "begins in func main()"),
    "a command of notebooks": ("python", "import json\n%pip install x", 'line 2, "%pip install x"'),
    "a command of a shell": ("python", "!ls", 'line 1, "!ls"'),
    "two blocks of Markdown": ("python", "```python\na\n```\nor\n```python\nb\n```", "the fences of Markdown"),
    "code beside Markdown": ("javascript", "let a = 1\n```js\na\n```", "the fences of Markdown"),
    "code beside Markdown in Go": ("go", "package main\n```go\nfunc main() {}\n```", "the fences of Markdown"),
    "its own error, with a fence in a text": ("python", "print(\"\"\"\n```\n\"\"\")\nprint(1 / 0)", "exit code 1\n"),
    "its own error, with a command in a text": ("python", "\"\"\"\n!ls\n\"\"\"\nraise SyntaxError('x')", "exit code 1\n"),
    "an import without extension": ("javascript", "import './util'", 'with the extension: "./util.js"', {"util.js": ""}),
    "an import of a folder": ("javascript", "import './lib'", 'extension: "./lib/index.js"', {"lib/index.js": ""}),
    "an import of TypeScript": ("typescript", "import './util'", "with its extension, such as", {"util.ts": ""}),
    "TypeScript that is required": ("javascript", "require('./util')", "with its extension, such as", {"util.ts": ""}),
    "a part of a package": ("javascript", "import 'lodash/map'", 'with the extension: "lodash/map.js"'),
    "an enum": ("typescript", "enum A { B }\nconsole.log(A.B)", "write an enum as an object"),
    "a namespace": ("typescript", "namespace A { export const b = 1 }\nconsole.log(A.b)", "a namespace as a module"),
    "a field in a constructor": ("typescript", "class A { constructor(public b: number) {} }", "as a field"),
    "tests without their names": ("javascript", "describe('a', () => {})", "from node:test, and use node:assert for expect"),
    "tests of another library": ("javascript", "import { expect } from 'chai'", "use node:test and node:assert"),
    "a module": ("python", "import left_pad.sub", "the module 'left_pad' is neither among the files"),
    "a module of Node.js": ("javascript", "require('left-pad')", "the module 'left-pad' is neither among the files"),
    "an imported module of Node.js": ("javascript", "import x from 'left-pad'", "the module 'left-pad' is neither among the files"),
    "the network": ("python", "import urllib.request; urllib.request.urlopen('http://example.org')", "no network"),
    "an address": ("python", "import socket; socket.create_connection(('192.0.2.1', 80), 5)", "no network"),
    "the network in JavaScript": ("javascript", "require('http').get('http://example.org')", "no network"),
    "fetch": ("javascript", "fetch('http://example.org').then(console.log)", "no network"),
    "the network in Go": (
        "go",
        'package main\nimport ("log"; "net")\nfunc main() { _, err := net.Dial("tcp", "example.org:80"); log.Fatal(err) }',
        "no network",
    ),
    "a package of Go by its address": ("go", 'package main\nimport _ "example.org/x/y"\nfunc main() {}', "example.org/x/y"),
    "a package of Go": ("go", 'package main\nimport _ "nope"\nfunc main() {}', "the package 'nope' is neither"),
    "its own words about a module": ("python", "import sys; sys.exit(\"ModuleNotFoundError: No module named 'x'\")", "exit code 1\n"),
    "its own words about a module in JavaScript": (
        "javascript",
        "console.error(\"Error: Cannot find module 'x'\"); process.exit(1)",
        "exit code 1\n",
    ),
    "its own words about a package": (
        "go",
        'package main\nimport "log"\nfunc main() { log.Fatal("package json: bad input") }',
        "exit code 1\n",
    ),
}


@pytest.mark.any_engine
@pytest.mark.parametrize("what", ADVICE)
async def test_the_advice_says_what_to_do(server, what):
    language, code, words, *more = ADVICE[what]
    stdin = "one line\n" if "too little" in what else ""
    files = [{"filename": name, "content": content} for name, content in (more[0] if more else {}).items()]
    result = await server.call(language=language, entrypoint_code=code, stdin=stdin, additional_files=files)
    assert result.is_error and words in text(result), text(result)


@pytest.mark.any_engine
async def test_lost_results_are_noted(server):
    notes = [
        ("python", "2 + 2", "only in a session"),
        ("go", "package main\nfunc main() {}", "printed nothing: print"),
        ("python", "open('/tmp/a chart.png', 'w').write('x')", '"/tmp/a chart.png" can\'t come back: only files in the working'),
    ]
    for language, code, words in notes:
        result = await server.call(language=language, entrypoint_code=code)
        (note,) = result.structured_content["notes"]
        assert not result.is_error and words in note and note in text(result), text(result)
    kept = "import tempfile\ntempfile.mkstemp()\nopen('/tmp/.cache', 'w').write('x')\nopen('a', 'w')"
    assert "notes" not in (await server.call(language="python", entrypoint_code=kept)).structured_content


# Prints its arguments, and does something more.
GO = 'package main\n\nimport ("fmt"; "os")\n\nfunc main() { fmt.Println(os.Args[1:], n); %s }\n'
PACKAGE = {
    "n_linux.go": 'package main\n\nconst n = "linux"\n',
    "n_windows.go": 'package main\n\nconst n = "windows"\n',
    "old.go": "//go:build !go1.20\n\npackage main\n\nconst n = 1\n",
    "gen.go": '//go:build ignore\n\npackage main\n\nimport "fmt"\n\nfunc main() { fmt.Println("made") }\n',
    "main_test.go": "package main\n\nthis is no Go",
    "_draft.go": "this is no Go",
    "data.c": "int main() {}",
}
MODULE = {"go.mod": "module app\n\ngo 1.24\n", "deep/deep.go": "package deep\n\nconst Name = 1\n"}
MUL = "package mul\n\nfunc Mul(a, b int) int { return a * b }\n"
MUL_TEST = (
    'package mul\n\nimport "testing"\n\n'
    "func TestSix(t *testing.T) { if Mul(2, 3) != 6 { t.Fail() } }\n"
    "func TestFour(t *testing.T) { if Mul(2, 2) != 5 { t.Fail() } }\n"
)
# The program's file, its source, other files, arguments; and the exit code, with what is printed.
GO_PROGRAMS = [
    ("main.go", GO % "os.Exit(3)", PACKAGE, ["x.go", "-v"], 3, "[x.go -v] linux\n", ""),
    ("main.go", GO % "os.Exit(4)", PACKAGE | MODULE, ["x.go"], 4, "[x.go] linux\n", ""),
    ("-x.go", GO % "", PACKAGE, [], 1, "", "does not begin with _ . or -"),
    ("gen.go", PACKAGE["gen.go"], PACKAGE | {"main.go": GO % ""}, [], 0, "made\n", ""),
    (
        "cmd/app/main.go",
        'package main\nimport ("app/deep"; "os")\nfunc main() { println(deep.Name, other); os.Exit(6) }',
        MODULE | {"cmd/app/other.go": "package main\n\nconst other = 2\n"},
        [],
        6,
        "",
        "1 2\n",
    ),
    ("main.go", 'package main\nfunc main() { panic("x") }', {}, [], 2, "", "panic: x"),
    ("main.go", "package main\nfunc main() { x := 1 }", {}, [], 1, "", "# command-line-arguments\n./main.go:2:15: declared"),
    ("_x.go", GO % "", {}, [], 1, "", "does not begin with _ . or -"),
    ("main.go", 'package main\nimport "C"\nfunc main() {}', {}, [], 1, "", "there is no C compiler"),
    ("main.go", GO % "", PACKAGE | {"MAIN.go": "package main"}, [], 1, "", "collision"),
    ("main.go", "package other", {}, [], 1, "", "one has package main and func main"),
    ("mul_test.go", MUL_TEST, {"mul.go": MUL}, [], 1, "--- FAIL: TestFour", ""),
    ("mul_test.go", MUL_TEST, {"mul.go": MUL} | MODULE, ["-run", "Six", "-v"], 0, "--- PASS: TestSix", ""),
    ("mul.go", MUL, {"mul_test.go": MUL_TEST}, ["-run", "Six"], 0, "ok", ""),
]


@pytest.mark.any_engine
async def test_a_program_in_go_is_its_package_and_ends_as_itself(server):
    for name, code, more, args, exit_code, out, err in GO_PROGRAMS:
        files = [{"filename": other, "content": more[other]} for other in more if other != name]
        result = await server.call(
            language="go",
            entrypoint_code=code,
            entrypoint_filename=name,
            additional_files=files,
            args=args,
            timeout="60s",
        )
        data = result.structured_content
        what = f"{name}: {code}: {data}"
        assert data["exit_code"] == exit_code and out in data["stdout"] and err in data["stderr"], what
        # Nothing is added, and there is no advice for it.
        assert "exit status" not in data["stderr"] and data.get("message") in (None, f"exit code {exit_code}"), what


async def test_a_signal_that_ends_a_program_in_go_is_told(server):
    code = 'package main\nimport ("os"; "syscall")\nfunc main() { syscall.Kill(os.Getpid(), syscall.SIGTERM); select {} }'
    result = await server.call(language="go", entrypoint_code=code)
    assert result.structured_content["signal"] == 15


async def test_scripts_that_were_sent_can_be_executed(server):
    files = {
        "run.sh": "#!/bin/sh\necho shell $1\n",
        "bin/run": "#!/usr/bin/env python3\nprint('python')\n",
        "data.txt": "# no program",
    }
    result = await server.call(
        language="python",
        entrypoint_code="import os, subprocess as s\n"
        "print(s.check_output(['./run.sh', 'a']), s.check_output('bin/run'))\n"
        "print([oct(os.stat(name).st_mode) for name in ('run.sh', 'bin/run', 'data.txt', 'main.py')])",
        additional_files=[{"filename": name, "content": content} for name, content in files.items()],
    )
    modes = ["0o100755", "0o100755", "0o100644", "0o100644"]
    assert stdout(result) == f"b'shell a\\n' b'python\\n'\n{modes}\n"


HEAP = "console.log(Math.floor(require('v8').getHeapStatistics().heap_size_limit / 2 ** 20))"
HOLD = "const all = []; for (let i = 0; i < %d; i++) all.push(new Array(131072).fill(i + 0.5)); console.log(all.length)"


async def test_javascript_has_the_memory_that_was_asked_for(server):
    limits = {}
    for memory_mb, least in [(0, 200), (512, 460), (1024, 920)]:
        # A variable is for a new interpreter.
        for env in [], ["A=b"]:
            result = await server.call(language="javascript", entrypoint_code=HEAP, memory_mb=memory_mb, env=env)
            limits.setdefault(memory_mb, set()).add(int(stdout(result)))
        assert len(limits[memory_mb]) == 1 and min(limits[memory_mb]) >= least, limits
    result = await server.call(language="javascript", entrypoint_code=HOLD % 400, memory_mb=512)
    assert stdout(result) == "400\n"
    result = await server.call(language="javascript", entrypoint_code=HOLD % 400)
    assert "with memory_mb (at most" in result.structured_content["message"], text(result)


# What comes after a snippet's name, its standard input, and what it prints.
SNIPPETS = [
    ("csv_summary", [], "Name;Amount (USD, EUR)\nx;1,5\n", "2. Amount (USD, EUR): text"),
    ("csv_summary", [], '"sep=;"\r\na;b\r\n1;2\r\n', "columns: 2\ndelimiter: ';'\n1. a: integer"),
    ("csv_summary", [], "# exported, in 2024, by x\n\nid,name\n1,x\n", "1. id: integer"),
    ("csv_summary", [], "Report of 2024,,\nid,name,c\n1,x,y\n", "1. id: integer"),
    ("csv_summary", [], ",value\n0,1.5\n1,2.5\n", "2. value: number"),
    ("csv_summary", ["--no-header"], "1;2\n3;4\n", "rows: 2\ncolumns: 2\n"),
    ("csv_summary", [], "one\n1,5\n", "columns: 1"),
    ("csv_sql", ["SELECT a FROM stdin"], "sep=|\na|b\nx, y|2\n", 'a\n"x, y"\n'),
    ("csv_sql", ["SELECT a FROM stdin", "--delimiter", ":"], "a:b\n1:2\n", "a\n1\n"),
    ("csv_sql", ["SELECT b FROM stdin", "--delimiter", "\\t"], "a,c\tb\n1\t2\n", "b\n2\n"),
    ("plot_csv", ["--kind", "hist"], "Sales report\nname;a (b, c)\nx;1\ny;2\n", "a (b, c): 2 plotted"),
    ("plot_csv", ["--delimiter", ":"], "x:y\n1:2\n", "y: 1 plotted"),
    ("cron_next", ["0 0 * * fri-sun", "--from", "2026-01-01", "--count", "4"], "", "02T00:00Z fri\n2026-01-03T00:00Z sat\n2026-01-04T00:00Z sun\n2026-01-09"),
    ("cron_next", ["0 0 * * 6-0", "--from", "2026-01-01", "--count", "2"], "", "sat\n2026-01-04T00:00Z sun"),
    ("cron_next", ["0 0 * * sun-mon", "--from", "2026-01-01", "--count", "2"], "", "sun\n2026-01-05T00:00Z mon"),
]


@pytest.mark.any_engine
async def test_the_snippets_understand_real_files(server):
    for name, args, stdin, words in SNIPPETS:
        result = await server.call(snippet_name=name, args=args, stdin=stdin)
        assert words in stdout(result), f"{name} {args}: {text(result)}"


@pytest.mark.any_engine
async def test_a_snippet_without_input_prints_its_usage(server):
    result = await server.call(snippet_name="json_shape")
    assert "its usage: json_shape [--at PATH] [FILE]" in text(result)


@pytest.mark.every_server
async def test_an_exit_code_is_an_error_of_the_tool_with_all_output(server, output_schema):
    code = 'import sys; print("out"); print("err", file=sys.stderr); sys.exit(3)'
    result = await server.call(language="python", entrypoint_code=code)
    assert result.is_error is True
    assert text(result) == (
        "Execution Failed (error): exit code 3\n\n--- stdout ---\nout\n\n--- stderr ---\nerr\n"
    )
    jsonschema.validate(result.structured_content, output_schema)
    assert result.structured_content["exit_code"] == 3
    assert "signal" not in result.structured_content


async def test_a_signal_is_named(server, output_schema):
    code = "import os, signal; print('out', flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
    result = await server.call(language="python", entrypoint_code=code)
    assert result.is_error is True
    jsonschema.validate(result.structured_content, output_schema)
    assert text(result) == (
        "Execution Failed (error): killed by signal 11 (SIGSEGV)\n\n--- stdout ---\nout\n\n--- stderr ---\n"
    )
    assert result.structured_content["signal"] == 11
    assert "exit_code" not in result.structured_content


async def test_a_timeout_ends_the_program_and_keeps_what_it_printed(server, output_schema):
    code = 'import time; print("before", flush=True); time.sleep(60)'
    started = time.monotonic()
    result = await server.call(language="python", entrypoint_code=code, timeout="500ms")
    assert time.monotonic() - started < 10
    assert result.is_error is True
    assert text(result).startswith("Execution Failed (timeout): ")
    assert "after 500ms" in text(result) and "at most 5m" in text(result)
    jsonschema.validate(result.structured_content, output_schema)
    assert result.structured_content["status"] == "timeout"
    assert result.structured_content["stdout"] == "before\n"


async def test_too_much_memory_is_named(server, output_schema):
    code = "data = bytearray(1 << 30)\nfor i in range(0, 1 << 30, 4096): data[i] = 1"
    result = await server.call(language="python", entrypoint_code=code)
    assert result.is_error is True
    jsonschema.validate(result.structured_content, output_schema)
    assert result.structured_content["status"] == "out_of_memory"


@pytest.mark.every_server
@pytest.mark.any_engine
async def test_many_calls_at_once_get_each_its_own_answer(server):
    nonces = [uuid.uuid4().hex for _ in range(20)]
    answers = {}

    async def call(index, nonce):
        language = LANGUAGES[index % 2]
        say = {"python": "print", "javascript": "console.log"}[language]
        result = await server.call(language=language, entrypoint_code=f'{say}("{nonce}")')
        answers[nonce] = stdout(result)

    async with anyio.create_task_group() as calls:
        for index, nonce in enumerate(nonces):
            calls.start_soon(call, index, nonce)
    assert answers == {nonce: nonce + "\n" for nonce in nonces}


@pytest.mark.every_server
async def test_a_call_that_is_given_up_ends_its_program_and_not_the_next(server):
    code = "import time; print('begun', flush=True); time.sleep(600)"
    has_begun = anyio.Event()

    async def listen(progress, total, message):
        if message:
            has_begun.set()

    async with anyio.create_task_group() as calls:
        arguments = {"language": "python", "entrypoint_code": code, "timeout": "2m"}
        calls.start_soon(lambda: server.client.call_tool("execute_code", arguments, progress_callback=listen))
        with anyio.fail_after(60):
            await has_begun.wait()
        there = server.sandboxes()
        calls.cancel_scope.cancel()
    await until(lambda: there - server.sandboxes(), 30, "its sandbox is gone")
    result = await server.call(language="python", entrypoint_code=HELLO["python"])
    assert stdout(result) == "Hello, Wörld!\n"
