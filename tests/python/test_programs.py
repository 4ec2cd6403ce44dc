"""Programs run through the official client, and what comes back to the byte."""

import base64
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


async def test_a_module_among_the_files_can_be_imported(server):
    result = await server.call(
        language="python",
        entrypoint_code="from lib.numbers import answer\nprint(answer())\n",
        additional_files=[
            {"filename": "lib/__init__.py", "content": ""},
            {"filename": "lib/numbers.py", "content": "def answer():\n    return 42\n"},
        ],
    )
    assert stdout(result) == "42\n"


async def test_every_byte_of_a_binary_file_arrives(server):
    content = bytes(range(256))
    result = await server.call(
        language="python",
        entrypoint_code='print(open("bytes", "rb").read().hex())',
        additional_files=[
            {
                "filename": "bytes",
                "content": base64.b64encode(content).decode(),
                "encoding": "base64",
            }
        ],
    )
    assert stdout(result) == content.hex() + "\n"


async def test_the_environment_and_the_name_of_the_program_are_the_callers(server):
    result = await server.call(
        language="python",
        entrypoint_code="import os, sys; print(os.environ['COLOUR'], os.path.basename(sys.argv[0]))",
        entrypoint_filename="paint.py",
        env={"COLOUR": "red"},
    )
    assert stdout(result) == "red paint.py\n"


async def test_a_snippet_runs_by_its_name(server):
    result = await server.call(snippet_name="word_freq", stdin="one two two\n")
    assert "two" in stdout(result)


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
