"""Messages that are made to take much memory. Each is answered, and none takes more than four times its own size."""

import json
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import processes
import pytest
from by_hand import CLIENT, by_hand, post
from faults import FIGURES, NO_POOL, configuration
from server import listening, process_with

SIZE = 30 << 20

# What a server may take besides: the answer, tasks, and what its allocator keeps.
SPARE = 16 << 20

# A message whose files are that large is served, too.
LARGE = {"maxFilesKB": 32 << 10, "maxMemoryMB": 1024}


def call(arguments, meta="", number="1"):
    """A call of a tool, of both revisions."""
    meta = json.dumps(CLIENT)[:-1] + meta + "}"
    return (
        f'{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":'
        f'{{"name":"execute_code","_meta":{meta},"arguments":{{"language":"python",{arguments}}}}}}}'
    ).encode()


def wide(one, joined="", end=""):
    """As many of them as a message holds."""
    return joined + one + f",{one}" * (SIZE // (len(one) + 1)) + end


CODE = '"entrypoint_code":"print(1)"'
TEXT = "x" * SIZE
LINES = ("x" * 79 + "\\n") * (SIZE // 81)
# The JSON of as many objects as a text of JSON can have, as that text.
OBJECTS = json.dumps(json.dumps([{"": 0}] * 7000))

# Arguments or whole messages, and what the answer says.
MESSAGES = {
    "numbers": (call(f'{CODE},"x":' + wide("0", "[", "]")), "values"),
    "numbers in a known field": (call(f'{CODE},"args":' + wide("0", "[", "]")), "values"),
    "texts": (call(f'{CODE},"args":' + wide('""', "[", "]")), "values"),
    "lists": (call(f'{CODE},"x":' + wide("[]", "[", "]")), "values"),
    "objects": (call(f'{CODE},"x":' + wide("{}", "[", "]")), "values"),
    "keys": (call(f'{CODE},"env":{{' + ",".join(f'"{key}":""' for key in range(2_000_000)) + "}"), "values"),
    "one key again and again": (call(CODE + ',"x":0' * (SIZE // 6)), "values"),
    "files": (call(f'{CODE},"additional_files":' + wide('{"filename":"a","content":""}', "[", "]")), "values"),
    "nested lists": (call(f'{CODE},"x":' + "[" * (SIZE // 2) + "]" * (SIZE // 2)), "values"),
    "nested objects": (call(f'{CODE},"x":' + '{"x":' * (SIZE // 6) + "0" + "}" * (SIZE // 6)), "values"),
    "a long key": (call(f'{CODE},"{TEXT}":0'), "no such argument"),
    "a long text of another type": (call(f'{CODE},"memory_mb":"{TEXT}"'), "memory_mb"),
    "a long number": (call(f'{CODE},"memory_mb":' + "1" * SIZE), "message"),
    "a long program": (call(f'"entrypoint_code":"#{TEXT}"'), "success"),
    "a long list in a text": (call(f'{CODE},"args":"[{"0," * (SIZE // 2)}0]"'), "list of strings"),
    "objects in a text": (call(f'{CODE},"args":{OBJECTS}'), "args[0]"),
    "many numbers for texts": (call(f'{CODE},"args":' + "[" + "0," * 9000 + '0],"x":"' + TEXT + '"'), "no such argument"),
    "a long program of lines": (call(f'"entrypoint_code":"#{LINES.replace("x", "#")}"'), "success"),
    "a long program with an escape at its end": (call(f'"entrypoint_code":"#{TEXT}\\n"'), "success"),
    "a file of lines": (
        call(
            '"entrypoint_code":"import os; print(os.stat(\'a\').st_size)","memory_mb":512,"additional_files":'
            f'[{{"filename":"a","content":"{LINES}"}}]'
        ),
        str(SIZE // 81 * 80),
    ),
    "escapes": (call('"entrypoint_code":"#' + "\\u0041" * (SIZE // 6) + '"'), "success"),
    "a long language": (call(f'{CODE},"language":"{TEXT}"'), "not a configured language"),
    "a long token of progress": (call(CODE, meta=f',"progressToken":"{TEXT}"'), "too long"),
    "a long identifier": (call(CODE, number=f'"{TEXT}"'), "too long"),
    "a long method": (b'{"jsonrpc":"2.0","id":1,"method":"' + TEXT.encode() + b'"}', "too long"),
    "a long ping": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"' + TEXT.encode() + b'"}}', "too long"),
    "a large file": (
        call(
            '"entrypoint_code":"import os; print(os.stat(\'a\').st_size)","memory_mb":512,"additional_files":'
            f'[{{"filename":"a","content":"{TEXT}"}}]'
        ),
        str(SIZE),
    ),
    "a large file by its name": (
        call(
            '"entrypoint_code":"import os; print(os.stat(\'a\').st_size)","memory_mb":512,"additional_files":'
            f'{{"a":"{TEXT}"}}'
        ),
        str(SIZE),
    ),
    "a large file in base64": (
        call(
            '"entrypoint_code":"import os; print(os.stat(\'a\').st_size)","memory_mb":512,"additional_files":'
            f'[{{"filename":"a","encoding":"base64","content":"{"AAAA" * (SIZE // 4)}"}}]'
        ),
        str(SIZE // 4 * 3),
    ),
}


@asynccontextmanager
async def on_standard_input(folder):
    with (folder / "log").open("w") as log:
        async with by_hand(folder, configuration(folder, pool=NO_POOL, limits=LARGE), log) as server:
            await server.begin()

            async def ask(message):
                before = sum(map(len, server.answers.values()))
                await server.send(message)
                with anyio.fail_after(60):
                    while sum(map(len, server.answers.values())) == before:
                        await anyio.sleep(0.01)
                (answer,) = server.answers.popitem()[1]
                return json.dumps(answer)

            yield server.pid, ask


@asynccontextmanager
async def over_http(folder):
    async with listening(folder, configuration(folder, pool=NO_POOL, limits=LARGE)) as url:

        async def ask(message):
            with anyio.fail_after(60):
                _, answer = await post(url, message)
            return answer.decode()

        yield process_with(f"XDG_STATE_HOME={folder}"), ask


@pytest.mark.only_on("embedded")
@pytest.mark.parametrize("transport", [on_standard_input, over_http])
async def test_no_message_takes_more_than_four_times_its_size(tmp_path, transport):
    too_much = {}
    async with transport(tmp_path) as (pid, ask):
        # What is made once is made.
        await ask(call(CODE))
        for name, (message, words) in MESSAGES.items():
            Path(f"/proc/{pid}/clear_refs").write_text("5")
            before = processes.status(pid, "VmRSS") << 10
            answer = await ask(message)
            took = (processes.status(pid, "VmHWM") << 10) - before
            FIGURES.info("%s: %.2f times %d MiB", name, took / len(message), len(message) >> 20)
            assert words in answer, f"{name}: {answer[:300]}"
            assert len(answer) < 10_000 or "identifier" in name, f"{name}: {len(answer)} bytes"
            if took > 4 * len(message) + SPARE:
                too_much[name] = f"{took >> 20} MiB for {len(message) >> 20}"
        assert "42" in await ask(call('"entrypoint_code":"print(6 * 7)"'))
    assert not too_much, too_much
