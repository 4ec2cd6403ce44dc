"""Clients of the APIs for computing rewards, as trainers have them, and the programs that they send."""

import json
import random
from contextlib import asynccontextmanager

import anyio
from server import configuration, listening

# What a program prints past this, in bytes, is too much.
MAX_OUTPUT = 10 << 20


@asynccontextmanager
async def serving(folder, apis, **settings):
    """The host and port of a server with these APIs, and its log."""
    config = configuration(folder, apis=apis, **settings)
    path = folder / "log"
    with path.open("w") as log:
        async with listening(folder, config, log) as url:
            host, port = url.split("/")[2].split(":")
            yield (host, int(port)), lambda: (log.flush(), path.read_text())[1]


class Answer:
    """An answer of a server."""

    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)


class Connection:
    """A connection that is kept between requests."""

    def __init__(self, stream, place):
        self.stream = stream
        self.place = place
        self.read = b""

    async def begin(self, method, path, body=None, **headers):
        """Sends a request. Headers are written with underscores."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        host = headers.pop("host", "%s:%d" % self.place)
        lines = [f"{method} {path} HTTP/1.1", f"host: {host}"]
        if body is not None:
            lines += [f"content-length: {len(body)}", "content-type: application/json"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.stream.send("\r\n".join([*lines, "", ""]).encode() + (body or b""))

    async def answer(self):
        while b"\r\n\r\n" not in self.read:
            self.read += await self.stream.receive()
        head, self.read = self.read.split(b"\r\n\r\n", 1)
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) if ":" in line else (line, "") for line in lines)
        length = int(headers.get("content-length", 0))
        pieces, size = [self.read], len(self.read)
        while size < length:
            pieces.append(await self.stream.receive())
            size += len(pieces[-1])
        read = b"".join(pieces)
        self.read = read[length:]
        return Answer(int(first.split()[1]), headers, read[:length])

    async def post(self, path, body, **headers):
        await self.begin("POST", path, body, **headers)
        return await self.answer()

    async def get(self, path, **headers):
        await self.begin("GET", path, **headers)
        return await self.answer()


@asynccontextmanager
async def connected(place):
    async with await anyio.connect_tcp(*place) as stream:
        yield Connection(stream, place)


async def post(place, path, body, **headers):
    async with connected(place) as connection:
        return await connection.post(path, body, **headers)


# The verdicts of trainers.
RIGHT, WRONG, FAILED, TIMEOUT, ERROR = "right", "wrong", "failed", "timeout", "error"

# Programs that read two numbers, with the verdict on each. A tenth of a batch is none that is right.
SUM = "a, b = map(int, input().split())\nprint(a + b)\n"
BAD = {
    "raises": ("raise SystemExit(3)\n", FAILED),
    "wrong": ("a, b = map(int, input().split())\nprint(a - b - 1)\n", WRONG),
    "hangs": ("while True:\n    pass\n", TIMEOUT),
    "sleeps": ("import time\ntime.sleep(60)\n", TIMEOUT),
    "floods": ("while True:\n    print('x' * 1000)\n", FAILED),
    "eats memory": ("x = []\nwhile True:\n    x.append(bytearray(1 << 20))\n", FAILED),
    "forks": ("import os\nwhile True:\n    os.fork()\n", None),
    "kills all": ("import os\nos.kill(-1, 9)\n", FAILED),
    "crashes": ("import ctypes\nctypes.string_at(1)\n", FAILED),
    "is no program": ("def f(:\n", FAILED),
}


def batch(number, seed=1):
    """Programs with their input, expected output, and the verdict that is right; `None` if several are."""
    generator = random.Random(seed)
    bad = list(BAD.values())
    programs = []
    for at in range(number):
        code, verdict = bad[at // 10 % len(bad)] if at % 10 == 0 else (SUM, RIGHT)
        a, b = generator.randrange(10**9), generator.randrange(10**9)
        programs.append((code, f"{a} {b}\n", f"{a + b}\n", verdict))
    generator.shuffle(programs)
    return programs


# What a trainer's client does at most after an answer that says that the server is busy, and how long it waits.
TRIES = 3
GRACE_S = 10


async def judged_by_fusion(connection, code, stdin, expected, timeout=5, memory=256, language="python"):
    """The verdict of a trainer that speaks to SandboxFusion: it tries again only after 504, and compares all that was printed."""
    request = {
        "compile_timeout": timeout,
        "run_timeout": timeout,
        "code": code,
        "stdin": stdin,
        "memory_limit_MB": memory,
        "language": language,
        "files": {},
        "fetch_files": [],
    }
    for attempt in range(TRIES):
        with anyio.fail_after(2 * timeout + GRACE_S):
            answer = await connection.post("/run_code", request)
        if answer.status != 504:
            break
        await anyio.sleep(int(answer.headers["retry-after"]) * (attempt + 1))
    if answer.status != 200 or answer.json["status"] == "SandboxError":
        return ERROR, answer
    run = answer.json["run_result"]
    if answer.json["status"] == "Success":
        return (RIGHT if run["stdout"].rstrip("\n") == expected.rstrip("\n") else WRONG), answer
    return (TIMEOUT if run["status"] == "TimeLimitExceeded" else FAILED), answer


# What an evaluator's client does at most after any answer but 200, or a shortage that the program has seen.
PISTON_TRIES = 5
PISTON_WAITS_S = 30
SHORTAGE = "Resource temporarily unavailable"


async def judged_by_piston(connection, code, stdin, expected, timeout=5, memory=256, language="python"):
    """The verdict of an evaluator that speaks to Piston: it tries again after anything but 200."""
    request = {
        "language": language,
        "version": "*",
        "files": [{"name": "main.py", "content": code}],
        "stdin": stdin,
        "run_timeout": timeout * 1000,
        "run_memory_limit": memory << 20,
    }
    for attempt in range(PISTON_TRIES):
        with anyio.fail_after(PISTON_WAITS_S):
            answer = await connection.post("/api/v2/execute", request)
        if answer.status == 200 and SHORTAGE not in answer.json["run"]["stderr"]:
            break
        await anyio.sleep(2**attempt / 4)
    if answer.status != 200:
        return ERROR, answer
    run = answer.json["run"]
    if run["code"] == 0 and run["signal"] is None:
        return (RIGHT if run["stdout"].strip() == expected.strip() else WRONG), answer
    is_late = run["signal"] == "SIGKILL" and "[isolator] timeout: " in run["stderr"]
    return (TIMEOUT if is_late else FAILED), answer


async def judge_all(place, judge, programs, at_once):
    """The programs with other verdicts than the right ones, and the times of all requests. As many connections are kept."""
    wrong, times = [], []
    waiting = list(reversed(programs))

    async def work():
        async with connected(place) as connection:
            while waiting:
                code, stdin, expected, verdict = waiting.pop()
                began = anyio.current_time()
                found, answer = await judge(connection, code, stdin, expected)
                times.append(anyio.current_time() - began)
                if verdict not in (found, None) or found == ERROR:
                    wrong.append((code, verdict, found, answer.status, answer.body[-400:]))

    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(work)
    return wrong, sorted(times)
