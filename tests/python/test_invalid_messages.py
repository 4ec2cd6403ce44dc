"""Messages byte by byte: invalid ones are answered, and requests are finished after the end of the input."""

import json

import anyio
import pytest
from by_hand import CLIENT, by_hand, post, python
from server import configuration, listening

pytestmark = pytest.mark.any_engine

PARSE_ERROR, INVALID_REQUEST = -32700, -32600
NO_POOL = {"size": 0, "hot": 0}

# What is no message, the identifier that its sender waits for, and the code of the error.
WRONG = {
    "not a number": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}', 1, PARSE_ERROR),
    "infinity": (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":{"x":-Infinity}}', "a", PARSE_ERROR),
    "a comma too many": (b'{"jsonrpc":"2.0","id":2,"method":"ping",}', 2, PARSE_ERROR),
    "a byte order mark": (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":3,"method":"ping"}', 3, PARSE_ERROR),
    "a raw tab": (b'{"jsonrpc":"2.0","id":4,"method":"pi\tng"}', 4, PARSE_ERROR),
    "a lone surrogate": (b'{"jsonrpc":"2.0","id":5,"method":"\\ud800"}', 5, PARSE_ERROR),
    "no UTF-8": (b'{"jsonrpc":"2.0","id":6,"method":"\xff"}', 6, PARSE_ERROR),
    "single quotes": (b"{'jsonrpc':'2.0','id':7,'method':'ping'}", None, PARSE_ERROR),
    "a part of a message": (b'{"jsonrpc":"2.0","id":8,"method":"pi', 8, PARSE_ERROR),
    "two messages": (b'{"jsonrpc":"2.0","id":9,"method":"ping"}{"jsonrpc":"2.0","id":10,"method":"ping"}', None, PARSE_ERROR),
    "an opening bracket": (b"{", None, PARSE_ERROR),
    "words": (b"hello", None, PARSE_ERROR),
    "two identifiers": (b'{"jsonrpc":"2.0","id":11,"id":12,"method":"ping"}', None, INVALID_REQUEST),
    "no identifier that there can be": (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', None, INVALID_REQUEST),
    "an empty list": (b"[]", None, INVALID_REQUEST),
    "a list of messages": (b'[{"jsonrpc":"2.0","id":13,"method":"ping"}]', None, INVALID_REQUEST),
    "an empty object": (b"{}", None, INVALID_REQUEST),
    "a number": (b"5", None, INVALID_REQUEST),
    "another version": (b'{"jsonrpc":"1.0","id":14,"method":"ping"}', 14, INVALID_REQUEST),
    "a method that is none": (b'{"jsonrpc":"2.0","id":15,"method":7}', 15, INVALID_REQUEST),
}


def call(arguments):
    """A call of a tool, with arguments as they are written."""
    meta = json.dumps(CLIENT)
    params = f'{{"name":"execute_code","_meta":{meta},"arguments":{{"language":"python",{arguments}}}}}'
    return f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'.encode()


# Numbers whose digits say more than a parser keeps of them.
NUMBERS = ["12345678901234567890123", "1.10", "1e2", "-0", "1E400", "0.1000000000000000055511151231257827", "7"]
PROGRAM = "import os, sys; print(sys.argv[1:], os.environ['A'], sys.stdin.read(), open('a').read(), open('b.json').read())"
SENT = call(
    f'"entrypoint_code":{json.dumps(PROGRAM)},"args":[{",".join(NUMBERS)}],"env":{{"A":1.10}},"stdin":1e2,"timeout":3e1,'
    '"additional_files":[{"filename":"a","content":1.50},{"filename":"b.json","content":{"c":[-0,1.10]}}]'
)
PRINTED = f'{NUMBERS} 1.10 1e2 1.50 {{"c":[-0,1.10]}}\n'


def is_told(answer, number, code):
    return answer["id"] == number and answer["error"]["code"] == code and answer["jsonrpc"] == "2.0"


def printed(answer):
    return answer["result"]["structuredContent"]["stdout"]


async def test_every_invalid_line_is_answered(tmp_path):
    with (tmp_path / "log").open("w") as log:
        async with by_hand(tmp_path, configuration(tmp_path, pool=NO_POOL), log) as server:
            await server.begin()
            for what, (line, number, code) in WRONG.items():
                await server.send(line)
                answer = await server.answer(number, 30)
                assert is_told(answer, number, code), f"{what}: {answer}"
                server.answers.clear()
            # These get no answer, and an empty line is no message.
            await server.send(b'{"method":"notifications/x"}', b'{"jsonrpc":"2.0","id":99,"result":7}', b"", b" \r")
            await server.send(SENT)
            assert printed(await server.answer(1, 60)) == PRINTED
            assert list(server.answers) == [1]


async def test_every_invalid_body_is_answered(tmp_path):
    async with listening(tmp_path, configuration(tmp_path, pool=NO_POOL)) as url:
        for what, (body, number, code) in WRONG.items():
            status, answer = await post(url, body, method="ping", name="")
            assert status == 400 and is_told(json.loads(answer), number, code), f"{what}: {status} {answer}"
        _, answer = await post(url, SENT)
        assert printed(json.loads(answer)) == PRINTED


async def test_requests_are_finished_after_the_end_of_the_input(tmp_path):
    slow = "import time; time.sleep(3); print('done')"
    with (tmp_path / "log").open("w") as log:
        async with by_hand(tmp_path, configuration(tmp_path, pool=NO_POOL), log) as server:
            await server.begin()
            await server.send(*(python(number, slow) for number in range(3)))
            await server.end()
            answers = await server.all_answers(range(3), 30)
            assert [printed(answer) for answer in answers] == ["done\n"] * 3
            with anyio.fail_after(30):
                assert await server.process.wait() == 0
