"""Sessions as their users meet them: what lives on between cells, what a cell returns, and files in both directions."""

import base64
import re

import anyio
import pytest
from mcp import MCPError
from programs import HELLO
from server import KINDS, configuration
from session_calls import HANDLE, Tools, open_session, opened, serving
from slips import SESSION_NAMES

# Of each kind a first cell, a second one that needs it, and the value of that.
STATE = {
    "python": ("import math\ndef f(n):\n    return n * 2\nx = 20", "f(x) + 2", "42"),
    "javascript": ("const f = (n) => n * 2; let x = 20;", "f(x) + 2", "42"),
}


@pytest.fixture
async def tools(server):
    return await Tools.of(server.client)


@pytest.mark.every_server
@pytest.mark.parametrize("language", STATE)
async def test_variables_and_files_live_on_between_cells(tools, language):
    first, second, value = STATE[language]
    async with opened(tools, language) as session:
        assert HANDLE.fullmatch(session.id)
        assert session.opened["language"] == language
        assert session.opened["interpreter"].split()[0] in ("Python", "Node.js")
        assert session.opened["limits"]["memory_mb"] == 256
        await session.cell(first)
        answer = await session.answer(second)
        data = answer.structured_content
        assert (data["cell"], data["result"], data["exit_code"]) == (2, value, 0)
        assert data["expires_at"] >= session.opened["expires_at"]
        assert f"--- result ---\n{value}" in answer.content[0].text
        receipt = answer.meta["isolator/receipt"]
        assert receipt["start"] == "session" and receipt["ms"]["total"] > 0
        await session.command("echo kept > a.txt")
        reads = {"python": "open('a.txt').read()", "javascript": "require('fs').readFileSync('a.txt', 'utf8')"}
        assert await session.value(reads[language]) == r"'kept\n'"
        assert await session.close()


async def test_two_sessions_share_nothing(tools):
    async with opened(tools) as one, opened(tools) as other:
        assert one.id != other.id
        await one.cell("x = 1; open('a', 'w').write('one')")
        failed = await other.cell("x", "error")
        assert "NameError" in failed["stderr"] and failed["exit_code"] == 1
        assert await other.value("import os; os.listdir()") == "[]"
        assert await one.value("x") == "1"


async def test_a_session_in_go_keeps_files_and_each_cell_is_a_program(tools):
    async with opened(tools, "go") as session:
        assert "interpreter" not in session.opened
        reads = (
            'package main\nimport ("fmt"; "io"; "os")\nfunc main() {\n  in, _ := io.ReadAll(os.Stdin)\n'
            '  kept, _ := os.ReadFile("kept.txt")\n'
            '  os.WriteFile("kept.txt", append(kept, in...), 0o644)\n'
            '  fmt.Print(os.Args[1:], os.Getenv("A"), string(kept), "|", string(in))\n}\n'
        )
        arguments = {"args": ["1", "2"], "env": {"A": "b"}, "timeout": "60s"}
        assert (await session.cell(reads, stdin="first", **arguments))["stdout"] == "[1 2]b|first"
        second = await session.cell(reads, stdin="second", **arguments)
        assert (second["stdout"], second["cell"]) == ("[1 2]bfirst|second", 2)
        assert "result" not in second and "notes" not in second
        assert (await session.command("cat kept.txt"))["stdout"] == "firstsecond"
        message = await tools.refuses("rewind_session", "cells", session=session.id, cells=1)
        assert message == "sessions in go can't be rewound"


@pytest.mark.any_engine
async def test_javascript_is_awaited_redeclared_and_typed(tools):
    async with opened(tools, "javascript") as session:
        await session.cell("const x = await Promise.resolve(1)")
        assert await session.value("const x = 2; x") == "2"
        assert await session.value("const { join } = await import('node:path'); join('a', 'b')") == "'a/b'"
        typed = "interface P { a: number }\nconst p: P = { a: 3 }; p.a"
        assert await session.value(typed, entrypoint_filename="cell.ts") == "3"
        failed = await session.cell("null.x", "error")
        assert "TypeError" in failed["stderr"] and "notes" not in failed
        assert await session.value("x + p.a") == "5"
        await tools.refuses("rewind_session", "cells", "javascript can't be rewound", session=session.id, cells=1)


@pytest.mark.any_engine
async def test_every_language_runs_its_hello(tools):
    for language, code in HELLO.items():
        async with opened(tools, language) as session:
            assert (await session.cell(code, timeout="60s"))["stdout"] == "Hello, Wörld!\n"


@pytest.mark.any_engine
async def test_shown_values_come_as_text_html_and_pictures(tools):
    async with opened(tools) as session:
        table = await session.answer("import pandas as pd\npd.DataFrame({'a': [1, 2]})", timeout="60s")
        (shown,) = table.structured_content["shown"]
        assert shown["is_result"] and "<table" in shown["html"] and "   a\n0  1\n1  2" in shown["text"]
        assert table.structured_content["result"] == shown["text"]
        assert "<table" not in table.content[0].text
        chart = await session.answer("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()", timeout="60s")
        (picture,) = [block for block in chart.content if block.type == "image"]
        assert base64.b64decode(picture.data).startswith(b"\x89PNG")
        (shown,) = [it for it in chart.structured_content["shown"] if "image/png" in it["media_types"]]
        assert not shown["is_result"]
        several = await session.cell("display(1)\ndisplay('two')\n3")
        assert [it["text"] for it in several["shown"]] == ["1", "'two'", "3"]
        assert [it["is_result"] for it in several["shown"]] == [False, False, True]
        awaited = "import asyncio\nawait asyncio.sleep(0.01, 'slept')"
        assert await session.value(awaited) == "'slept'"
        assert "result" not in await session.cell("4;")
        failed = await session.cell("def bad():\n    return 1 / 0\n\nbad()", "error")
        assert "return 1 / 0" in failed["stderr"] and "/.isolator" not in failed["stderr"]


def pictures_of(answer):
    return [base64.b64decode(block.data) for block in answer.content if block.type == "image"]


def size_of(png):
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


@pytest.mark.any_engine
async def test_figures_come_whole_and_once_and_omitted_ones_are_noted(tools):
    async with opened(tools) as session:
        await session.cell("import matplotlib.pyplot as plt", timeout="60s")
        many = await session.answer("for n in range(12): plt.figure(figsize=(1, 1)); plt.plot([n])\nplt.show()", timeout="60s")
        assert len(pictures_of(many)) == 10
        (note,) = many.structured_content["notes"]
        assert note.startswith("2 of the pictures that the cell showed are not in the answer")
        content = await tools.read(re.findall(r"isolator://[^, ]+", note)[1])
        assert base64.b64decode(content.blob).startswith(b"\x89PNG")
        # A label that sticks out makes its picture larger.
        (whole,) = pictures_of(await session.answer("plt.plot([1])\nplt.text(0.5, 1.3, 'above', transform=plt.gca().transAxes)"))
        (plain,) = pictures_of(await session.answer("plt.plot([1])\nplt.show()"))
        assert size_of(whole)[1] > size_of(plain)[1]
        # What is far away does not.
        (far,) = pictures_of(await session.answer("plt.plot([1])\nplt.text(9, 1, 'away', transform=plt.gca().transAxes)\nplt.show()"))
        assert size_of(far) == (640, 480)
        for saved in ["plt.savefig('a.png', dpi=50); plt.show()", "plt.gcf().savefig('b.png', bbox_inches='tight')"]:
            answer = await session.answer(f"plt.plot([1]); {saved}")
            assert len(pictures_of(answer)) == 1, answer.content
            assert "the same picture is shown once" in answer.structured_content["notes"][0]
        changed = await session.answer("plt.plot([1]); plt.savefig('c.png'); plt.plot([2]); plt.show()")
        assert len(pictures_of(changed)) == 2 and "notes" not in changed.structured_content
        styled = await session.cell("import pandas as pd\npd.DataFrame({'a': [1]}).style", timeout="60s")
        assert styled["result"] == "| a\n0 | 1" and "<table" in styled["shown"][0]["html"]


@pytest.mark.any_engine
async def test_the_advice_fits_a_session(tools):
    async with opened(tools) as session:
        failed = await session.cell("open('/mnt/data/x')", "error")
        assert 'no file or folder "/mnt/data/x" in the session' in failed["message"] and "run_command" in failed["message"]
        for command, words in [
            ("cat x", 'no file or folder "x" in the session'),
            ("touch /x", "can write to its working directory"),
            ("echo > a.sh; ./a.sh", "chmod +x"),
            ("yarn add x", "no command 'yarn'"),
        ]:
            told = await session.command(command, "error")
            assert words in told["message"], told
        left = await session.cell("open('/tmp/a.png', 'w').write('x');")
        assert "\"/tmp/a.png\" can't come back" in left["notes"][0]


@pytest.mark.any_engine
async def test_shown_values_are_bounded(tools):
    async with opened(tools) as session:
        many = await session.cell("for n in range(2000): display(n)")
        assert len(many["shown"]) == 500 and "1500 things are missing" in " ".join(many["notes"])
        long = await session.answer("'x' * (1 << 20)")
        assert len(long.content[0].text) < 100_000
        html = "class H:\n    def _repr_html_(self): return '<b>' * (1 << 20)\n    def __repr__(self): return 'H'\nH()"
        (shown,) = (await session.cell(html))["shown"]
        assert shown["text"] == "H" and "html" not in shown
        lies = "class P:\n    def _repr_png_(self): return b'no picture'\n    def __repr__(self): return 'P'\nP()"
        answer = await session.answer(lies)
        assert not [block for block in answer.content if block.type == "image"]
        assert answer.structured_content["result"] == "P"


async def test_files_come_with_a_session_and_with_cells_and_go_in_parts(tools):
    given = [{"filename": "d/a.txt", "content": "one"}]
    async with opened(tools, files=given) as session:
        part = {"filename": "d/a.txt", "content": "+two", "append": True}
        binary = {"filename": "b.bin", "content": base64.b64encode(bytes(range(256))).decode(), "encoding": "base64"}
        new = {"filename": "new", "content": "1", "append": True}
        read = "open('d/a.txt').read(), len(open('b.bin', 'rb').read()), open('new').read()"
        assert await session.value(read, additional_files=[part, binary, new]) == "('one+two', 256, '1')"
        assert await session.value(read, additional_files=[part, new]) == "('one+two+two', 256, '11')"
        whole = {"filename": "d/a.txt", "content": "again"}
        assert await session.value("open('d/a.txt').read()", additional_files=[whole]) == "'again'"
        for name in ("../x", "/etc/x", ""):
            wrong = {"session": session.id, "entrypoint_code": "1"}
            wrong |= {"additional_files": [{"filename": name, "content": ""}]}
            await tools.refuses("execute_code", "additional_files[0].filename", **wrong)
        assert await session.files() == {"d/a.txt": 5, "b.bin": 256, "new": 2}


async def test_links_and_pipes_are_replaced_by_files(tools):
    async with opened(tools) as session:
        await session.cell(
            "import os\nopen('target', 'w').write('untouched')\nos.symlink('target', 'link')\n"
            "os.symlink('/tmp', 'folder')\nos.mkfifo('pipe')\nos.mkdir('there')"
        )
        files = [{"filename": name, "content": "x", "append": append} for name in ("link", "pipe") for append in (False, True)]
        for file in files:
            assert await session.value(f"open('{file['filename']}').read()", additional_files=[file]) in ("'x'", "'xx'")
        assert await session.value("open('target').read()") == "'untouched'"
        # A folder is no place for a file, and a link is no folder.
        for name in ("folder/x", "there", "target/x"):
            refused = await session.answer("ran = 1", additional_files=[{"filename": name, "content": "x"}])
            assert refused.is_error and "Nothing was run" in refused.content[0].text, refused.content
        failed = await session.cell("ran", "error")
        assert "NameError" in failed["stderr"]
        assert await session.value("os.listdir('/tmp')") == "[]"


async def test_files_of_a_session_are_resources_and_are_read_in_ranges(tools):
    async with opened(tools) as session:
        await session.cell(
            "import os\nopen('a b#?%.txt', 'w').write('0123456789')\nopen(b'\\xff.csv', 'w').write('bytes')\n"
            "open('\\\\xff.csv', 'w').write('text')\nopen('b.bin', 'wb').write(bytes(range(256)))\n"
            "os.makedirs('d/e'); open('d/e/f', 'w').write('deep')\nos.symlink('/etc/passwd', 'link'); os.mkfifo('pipe')"
        )
        sizes = {"a b#?%.txt": 10, "\\xff.csv": 5, "\\x5cxff.csv": 4, "b.bin": 256, "d/e/f": 4}
        assert await session.files() == sizes
        assert (await session.file("d/e/f")).text == "deep"
        assert (await session.file("a%20b%23%3F%25.txt", "?offset=3&length=4")).text == "3456"
        assert (await session.file("a%20b%23%3F%25.txt", "?offset=8")).text == "89"
        assert base64.b64decode((await session.file("b.bin", "?offset=250&length=100")).blob) == bytes(range(250, 256))
        assert (await session.file("%5Cxff.csv")).text == "bytes"
        assert (await session.file("%5Cx5cxff.csv")).text == "text"
        for path in ("none", "link", "pipe", "d", "../etc/passwd", "%2Fetc%2Fpasswd", "d/e/f/g"):
            with pytest.raises(MCPError, match="there is no such file"):
                await session.file(path)
        for path, said in {"%FF": "is not UTF-8", "x" * 5000: "is longer than 4096 bytes"}.items():
            with pytest.raises(MCPError, match=said):
                await session.file(path)
        for query in ("?offset=x", "?offset=-1", "?from=1", f"?offset={1 << 70}"):
            with pytest.raises(MCPError):
                await session.file("b.bin", query)
        # Reading is using.
        assert (await session.state())["expires_at"] >= session.opened["expires_at"]
        for uri in (f"isolator://sessions/{'0' * 32}/files", f"isolator://sessions/{session.id}", "isolator://sessions/"):
            with pytest.raises(MCPError):
                await tools.read(uri)


async def test_a_cell_returns_its_files_and_the_requested_ones(tools):
    async with opened(tools) as session:
        first = await session.cell("open('a.txt', 'w').write('a'); open('b.txt', 'w').write('b')")
        assert [file["path"] for file in first["files"]] == ["a.txt", "b.txt"]
        second = await session.cell("open('b.txt', 'w').write('c')")
        assert [file["path"] for file in second["files"]] == ["b.txt"]
        assert "files" not in await session.cell("1")
        # A named file comes back, whichever cell has made it.
        result = await session.answer("2", output_files=["a.txt"])
        (text,) = [block for block in result.content if block.type == "resource"]
        assert text.resource.text == "a"
        sent = await session.cell("3", additional_files=[{"filename": "sent", "content": "x"}])
        assert "files" not in sent
        command = await session.command("echo more >> a.txt")
        assert [file["path"] for file in command["files"]] == ["a.txt"]


async def test_a_command_has_its_folder_input_variables_and_end(tools):
    async with opened(tools) as session:
        await session.cell("import os; os.mkdir('d')")
        run = await session.command("pwd; cat; echo $A; exit 3", "error", cwd="d", stdin="in\n", env={"A": "b c"})
        assert (run["stdout"], run["exit_code"]) == ("/workspace/d\nin\nb c\n", 3)
        assert run["expires_at"] and run["cell"] == 2
        assert (await session.command("pwd", cwd="/tmp"))["stdout"] == "/tmp\n"
        assert "still running after 1s" in (await session.command("sleep 60", "timeout", timeout="1s"))["message"]
        nowhere = await session.call("run_command", command="true", cwd="none")
        assert nowhere.is_error and "there is no folder" in nowhere.content[0].text
        missing = await session.command("no-such-program", "error")
        assert missing["exit_code"] == 127 and "not found" in missing["stderr"]
        await tools.refuses("run_command", "command", session=session.id, command="  ")
        await tools.refuses("run_command", "command", session=session.id)


async def test_background_processes_survive_and_print_later(tools):
    async with opened(tools) as session:
        data = await session.command("(sleep 0.3; echo late) & echo now")
        assert data["stdout"] == "now\n" and "background_output" not in data
        await anyio.sleep(0.6)
        later = await session.cell("print('mine')")
        assert (later["stdout"], later["background_output"]) == ("mine\n", "late\n")
        await session.cell(
            "import threading, time\n"
            "def later():\n    time.sleep(0.3); print('from a thread', flush=True)\n"
            "threading.Thread(target=later).start()"
        )
        await anyio.sleep(0.6)
        assert (await session.command("true"))["background_output"] == "from a thread\n"
        await session.command("sleep 100 & echo $! > pid")
        assert await session.value("import os; os.kill(int(open('pid').read()), 0)\n'alive'") == "'alive'"


# What goes on showing things when its cell has ended.
SHOWS_LATER = {
    "python": (
        "import threading, time\ndef shows():\n    while True:\n        time.sleep(0.02)\n        display('late')\n"
        "threading.Thread(target=shows, daemon=True).start()"
    ),
    "javascript": "setInterval(() => display('late'), 20); undefined",
}


@pytest.mark.parametrize("language", SHOWS_LATER)
async def test_values_shown_between_cells_belong_to_the_next(tools, language):
    async with opened(tools, language) as session:
        await session.cell(SHOWS_LATER[language])
        for _ in range(3):
            await anyio.sleep(0.2)
            data = await session.cell("6 * 7")
            assert data["result"] == "42", data
            texts = [thing["text"].strip("'") for thing in data["shown"]]
            assert set(texts) == {"late", "42"} and data["shown"][0]["is_result"] is False, data
            assert data["shown"][0]["is_background"] and "is_background" not in data["shown"][-1], data


async def test_cells_queue_up_to_a_limit(tools):
    async with opened(tools) as session:
        await session.cell("seen = []")
        answers = {}

        async def run(number):
            answers[number] = await session.answer(f"seen.append({number})")

        async with session.running("import time; time.sleep(2); seen.append(0)") as first:
            async with anyio.create_task_group() as calls:
                for number in range(1, 13):
                    calls.start_soon(run, number)
        assert not first[0].is_error
        refused = [answer for answer in answers.values() if answer.is_error]
        assert len(refused) == 4
        assert all("waiting already" in it.content[0].text and "Nothing was run" in it.content[0].text for it in refused)
        assert all("Wait for the answers to these calls" in it.content[0].text for it in refused)
        ran = sorted(number for number, answer in answers.items() if not answer.is_error)
        assert await session.value("seen[0], sorted(seen[1:])") == f"(0, {ran})"


@pytest.mark.any_engine
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3]])
async def test_a_long_cell_is_detached_and_its_result_fetched(tmp_path, kind):
    config = configuration(tmp_path, results={"detachAfter": "500ms"}, pool={"size": 0, "hot": 0})
    async with serving(tmp_path, config, kind) as (_, tools), opened(tools) as session:
        data = await session.cell("import time\nx = 1\nprint('begun', flush=True)\ntime.sleep(1.5)\nx", "running")
        with anyio.fail_after(20):
            while data["status"] == "running":
                data = (await tools.call("get_result", {"handle": data["handle"]})).structured_content
        assert (data["status"], data["result"], data["cell"], data["stdout"]) == ("success", "1", 1, "begun\n")
        long = await session.cell("x = 2\nprint('so far', flush=True)\ntime.sleep(60)", "running")
        ended = await tools.call("get_result", {"handle": long["handle"], "cancel": True})
        assert (ended.structured_content["status"], ended.structured_content["stdout"]) == ("killed", "so far\n")
        assert await session.value("x") == "1"
        command = await session.command("sleep 0.8; echo done", "running")
        done = await tools.call("get_result", {"handle": command["handle"]})
        assert done.structured_content["stdout"] == "done\n"


@pytest.mark.any_engine
async def test_arguments_that_make_no_sense_are_refused_before_anything_runs(tools):
    async with opened(tools) as session:
        cell = {"session": session.id, "entrypoint_code": "ran = 1"}
        for field, value in {
            "args": ["1"],
            "stdin": "x",
            "env": {"A": "b"},
            "snippet_name": "hello",
            "memory_mb": 512,
            "cpus": 1,
            "entrypoint_filename": "main.py",
            "language": "javascript",
            "timeout": "1h",
        }.items():
            await tools.refuses("execute_code", field, **cell, **{field: value})
        await tools.refuses("execute_code", "entrypoint_code", session=session.id)
        assert "NameError" in (await session.cell("ran", "error"))["stderr"]
        # What means the same is understood.
        assert await session.value("1", language="py") == "1"
        answer = await tools.call("execute_code", {"session_id": session.id, "code": "2"})
        assert answer.structured_content["result"] == "2"
        for cells in (0, -1, 1.5, "x", None, 1 << 40):
            await tools.refuses("rewind_session", "cells", session=session.id, cells=cells)
    await tools.refuses("open_session", "language")
    await tools.refuses("open_session", "language", language="cobol")
    await tools.refuses("open_session", "memory_mb", language="python", memory_mb=1 << 30)
    await tools.refuses("open_session", "cpus", language="python", cpus=-1)
    for time in ("0s", "100ms", "31m", "soon"):
        await tools.refuses("open_session", "idle_timeout", language="python", idle_timeout=time)
    await tools.refuses("open_session", "files[0].filename", language="python", files=[{"filename": "../a", "content": ""}])
    await tools.refuses("open_session", "replay", language="python", replay="0" * 32)


@pytest.mark.any_engine
async def test_an_unknown_handle_is_reported_by_every_tool(tools):
    code = {"language": "python", "entrypoint_code": "print('ran')"}
    others = {"run_command": {"command": "true"}, "rewind_session": {"cells": 1}, "interrupt_session": {}, "close_session": {}}
    for handle in ("0" * 32, "../x", "x" * 10_000, "\x00\x1b[2J", 5, ["x"], {"a": 1}):
        for tool, arguments in [("execute_code", code), *others.items()]:
            message = await tools.refuses(tool, "session", session=handle, **arguments)
            assert len(message) < 500 and "\x1b" not in message
    for tool, arguments in others.items():
        await tools.refuses(tool, "session", **arguments)


@pytest.mark.any_engine
async def test_a_session_is_used_however_it_is_named_and_whatever_is_around_it(tools):
    async with opened(tools) as session:
        cell = {"language": "python", "entrypoint_code": "open('a', 'a').write('x')"}
        calls = [{name: session.id} | cell for name in SESSION_NAMES]
        notes = [f"{name} was taken as session" for name in SESSION_NAMES]
        calls += [{"session": None, "session_id": session.id} | cell, {"session": "", "handle": session.id} | cell]
        notes += ["session_id was taken as session", "handle was taken as session"]
        # Its language is known, and may be said in other words.
        unnamed = {"entrypoint_code": cell["entrypoint_code"]}
        calls += [{"input": {"session": session.id} | unnamed}, {"arguments": {"handle": session.id} | cell}]
        notes += ["the arguments were taken from input", "the arguments were taken from arguments"]
        calls += [{"session": session.id, "language": None} | unnamed, {"session": session.id, "lang": "Python 3"} | unnamed]
        notes += [None, "lang was taken as language"]
        for number, (arguments, note) in enumerate(zip(calls, notes, strict=True), 1):
            data = (await tools.call("execute_code", arguments)).structured_content
            assert (data["status"], data.get("cell")) == ("success", number), (arguments, data)
            assert note is None or note in data["notes"], (arguments, data)
        assert await session.value("open('a').read()") == repr("x" * len(calls))


@pytest.mark.any_engine
async def test_limits_that_are_asked_for_hold(tools):
    async with opened(tools, memory_mb=128, cpus=1, idle_timeout="1m") as session:
        limits = session.opened["limits"]
        assert (limits["memory_mb"], limits["cpus"], limits["idle_timeout"]) == (128, 1, "1m")
        data = await session.cell("heap = bytearray(200 << 20)", "out_of_memory")
        assert data["undone"] and "open another session with more memory_mb (at most 1024)" in data["message"], data


@pytest.mark.any_engine
async def test_cells_are_checked_by_the_policies(tmp_path):
    config = configuration(tmp_path, policies={"apply": {"python": ["strict"]}}, pool={"size": 0, "hot": 0})
    async with serving(tmp_path, config) as (_, tools), opened(tools) as session:
        refused = await session.cell("import subprocess\nx = 1", "refused")
        assert refused["violations"][0]["line"] == 1
        assert "NameError" in (await session.cell("x", "error"))["stderr"]
        assert await session.value("1 + 1") == "2"
        bad = [{"filename": "m.py", "content": "import os"}]
        assert (await session.cell("1", "refused", additional_files=bad))["violations"]
        opening = await tools.call("open_session", {"language": "python", "files": bad})
        assert opening.is_error, opening.content


@pytest.mark.any_engine
async def test_a_server_without_sessions_offers_none(tmp_path):
    config = configuration(tmp_path, sessions={"max": 0}, pool={"size": 0, "hot": 0})
    async with serving(tmp_path, config) as (server, tools):
        assert not {"open_session", "run_command"} & tools.schemas.keys()
        resources = (await server.client.list_resources()).resources
        assert "isolator://sessions" not in {resource.uri for resource in resources}
        arguments = {"session": "0" * 32, "language": "python", "entrypoint_code": "1"}
        await tools.refuses("execute_code", "session", "offers no sessions", **arguments)
        for name in SESSION_NAMES:
            named = {name: arguments["session"], "language": "python", "entrypoint_code": "1"}
            await tools.refuses("execute_code", "session", "offers no sessions", **named)


async def test_the_list_and_the_counts_include_sessions(tools):
    before = await tools.counts()
    async with opened(tools) as session, opened(tools, "go") as other:
        counts = await tools.counts()
        assert (counts["open"] - before["open"], counts["opened"] - before["opened"]) == (2, 2)
        listed = await tools.listed()
        assert list(listed) == [session.id, other.id]
        assert (listed[session.id]["language"], listed[other.id]["language"]) == ("python", "go")
        assert listed[session.id]["interpreter"].startswith("Python 3") and "interpreter" not in listed[other.id]
        async with session.running("import time; time.sleep(1)"):
            assert (await tools.counts())["running"] == 1
        await session.cell("x = bytearray(50 << 20)")
        assert (await session.state())["memory_bytes"] > 50 << 20
        await session.cell("import os; os._exit(1)", "error")
        assert (await tools.counts())["undone_cells"] == before["undone_cells"] + 1
        await session.is_frozen()
        assert (await tools.counts())["frozen"] >= 1
    assert await tools.listed() == {}
    assert (await tools.counts())["open"] == before["open"]
    again = await open_session(tools)
    assert await again.close()
    await tools.is_gone(again.id, "it was closed")
