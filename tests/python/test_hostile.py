"""Hostile programs, and what their callers see.

Each table in the files of `hostile/` is a case: a program, how it is called, and what has to come of it. Whatever
it does, the server goes on serving, and at the end nothing is left and nothing has grown.

Programs run several at a time: those with `within_s` over standard input and output, two at a time, and all others
over HTTP, four at a time. With ISOLATOR_TEST_ALL=1 every program runs over both, one at a time over the first. Programs whose
time is measured run when no other test does.

A call:

    code, language          the program; Python by default
    args, stdin, env, timeout, memory_mb, output_files   as in a call
    files                   other files by their names
    machine                 the only one on which there is such a thing
    beside                  a program that runs meanwhile, from when it says that it is ready

What is expected. A list has everything that is right, anything else is exactly that:

    status, exit_code, signal    "success" by default
    answers                 what the program prints as JSON, by names
    every                   what each of its answers is
    stdout, stderr          to the letter
    message, notes, prints, complains    what is in the message, the notes, standard output, standard error
    stdout_length, stderr_length    characters
    whole                   whether all of both streams was UTF-8
    missing                 whether output is missing from the middle of its streams
    message_lines, message_length   the most that the message may have
    left, left_count        the paths of the files that it left, and how many they are
    returned, pictures      of the files whose content comes back, how it does, and how many are shown
    contents                what each text that comes back may be
    within_s                the longest that the program may take, if at most one other runs
    docker, embedded        what differs on an engine
"""

import json
import os
import tomllib
import uuid
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import engine
import processes
import pytest
import scope
from programs import HELLO
from server import WAITS, configuration, isolator, receipt
from side_by_side import chosen, side_by_side

FOLDER = Path(__file__).with_name("hostile")
HELPERS = FOLDER / "attempts.py"

# Long enough for a program of a few milliseconds on a busy machine.
TIMEOUT = "20s"

CALL = {"language", "args", "stdin", "env", "timeout", "memory_mb", "output_files"}

# A program may cost the server's allocator some pages once, but not each time.
GROWTH_KIB = 64 * 1024
# (Connections to an engine are kept for a minute and a half, as many as calls were made at once.)
GROWTH_FILES = 64

# What waits has to go when the client does, within the seconds that it gives a server for that.
POOL = {"size": 1, "hot": 1}
PYTHON_POOL = {"size": 4, "hot": 2}

# Programs that have to end in some time need most of the machine for that.
TIMED_AT_ONCE = 1 if scope.EVERYTHING else 2
AT_ONCE = 4


class Case:
    """A table of a file."""

    def __init__(self, topic, name, settings):
        self.topic = topic
        self.name = f"{topic}-{name}"
        self.machine = settings.pop("machine", os.uname().machine)
        self.call = {"language": "python", "timeout": TIMEOUT, "entrypoint_code": settings.pop("code")}
        self.call |= {key: settings.pop(key) for key in CALL & settings.keys()}
        files = settings.pop("files", {})
        if self.call["language"] == "python":
            files[HELPERS.name] = HELPERS.read_text()
        self.call["additional_files"] = [{"filename": name, "content": content} for name, content in files.items()]
        self.beside = self.call | {"entrypoint_code": settings.pop("beside", None), "timeout": "60s"}
        own = {kind: settings.pop(kind, {}) for kind in ("docker", "embedded")}
        self.expected = {"status": "success"} | settings | own[engine.KIND]
        assert self.expected.keys() <= CHECKS.keys(), f"{self.name}: {self.expected.keys() - CHECKS.keys()}"

    def __str__(self):
        return self.name


def fits(expected, found):
    return found in expected if isinstance(expected, list) else found == expected


def contains(found, parts):
    return all(part in found for part in ([parts] if isinstance(parts, str) else parts))


def answers(data):
    return json.loads(data["stdout"])


def has_answers(data, expected):
    found = answers(data)
    return found.keys() == expected.keys() and all(fits(expected[key], found[key]) for key in found)


def has_only(data, expected):
    return answers(data) and all(fits(expected, found) for found in answers(data).values())


def is_missing(data):
    return "stdout_missing_bytes" in data or "stderr_missing_bytes" in data


def left(data):
    return [file["path"] for file in data.get("files", [])]


def returned(data):
    return {file["path"]: file["returned"] for file in data.get("files", []) if "returned" in file}


CHECKS = {
    "status": lambda data, it: fits(it, data["status"]),
    "exit_code": lambda data, it: fits(it, data.get("exit_code")),
    "signal": lambda data, it: fits(it, data.get("signal")),
    "answers": has_answers,
    "every": has_only,
    "stdout": lambda data, it: fits(it, data["stdout"]),
    "stderr": lambda data, it: fits(it, data["stderr"]),
    "message": lambda data, it: contains(data["message"], it),
    "notes": lambda data, it: contains(" ".join(data.get("notes", [])), it),
    "prints": lambda data, it: contains(data["stdout"], it),
    "complains": lambda data, it: contains(data["stderr"], it),
    "stdout_length": lambda data, it: len(data["stdout"]) == it,
    "stderr_length": lambda data, it: len(data["stderr"]) == it,
    "whole": lambda data, it: ("\ufffd" not in data["stdout"] + data["stderr"]) == it,
    "missing": lambda data, it: is_missing(data) == it,
    "message_lines": lambda data, it: len(data["message"].splitlines()) <= it,
    "message_length": lambda data, it: len(data["message"]) <= it,
    "left": lambda data, it: left(data) == it,
    "left_count": lambda data, it: len(left(data)) == it,
    "returned": lambda data, it: returned(data) == it,
    "pictures": lambda data, it: list(returned(data).values()).count("image") == it,
    "contents": lambda data, it: all(text in it for text in data["contents"]),
    "within_s": lambda data, it: data["ms"]["run"] < it * 1000,
}


def cases():
    for path in sorted(FOLDER.glob("*.toml")):
        for name, settings in tomllib.loads(path.read_text()).items():
            case = Case(path.stem, name, settings)
            if case.machine == os.uname().machine:
                yield case


CASES = list(cases())


def shortened(value):
    text = repr(value)
    return text if len(text) < 2000 else f"{text[:1000]} … {text[-1000:]}"


async def run(server, case, is_timed=False):
    """Runs the program and holds what comes back against what has to."""
    async with beside(server, case):
        check(case, await server.call(**case.call), is_timed)


async def check_that_it_serves(server):
    """Sees that the server gives an ordinary program its own answer."""
    nonce = uuid.uuid4().hex
    result = await server.call(language="python", entrypoint_code=f"print('{nonce}')")
    assert result.structured_content["stdout"] == f"{nonce}\n", result.content


@asynccontextmanager
async def beside(server, case):
    """Has the case's other program run meanwhile."""
    if case.beside["entrypoint_code"] is None:
        yield
        return
    is_ready = anyio.Event()

    async def listen(progress, total, message):
        if "ready" in (message or ""):
            is_ready.set()

    async def call():
        result = await server.client.call_tool("execute_code", case.beside, progress_callback=listen, meta=WAITS)
        raise AssertionError(f"{case.name}: the other has ended: {result.content}")

    async with anyio.create_task_group() as calls:
        calls.start_soon(call)
        with anyio.fail_after(30):
            await is_ready.wait()
        yield
        calls.cancel_scope.cancel()


def check(case, result, is_timed):
    """Holds what came back against what has to."""
    data = result.structured_content
    assert data, f"{case.name}: {result.content}"
    told = f"{case.name}: {shortened(data)}"
    # The text is the same, and its beginning is never the program's.
    is_failure = data["status"] != "success"
    head = f"Execution Failed ({data['status']}): {data['message']}\n\n" if is_failure else ""
    text = f"{head}--- stdout ---\n{data['stdout']}\n--- stderr ---\n{data['stderr']}"
    # Only files and notes come after it.
    assert (result.is_error, result.content[0].text[: len(text)]) == (is_failure, text), told
    more = result.content[0].text[len(text) :].lstrip("\n")
    assert not more or more.startswith(("--- files ---\n", "--- notes ---\n")), told
    data["ms"] = receipt(result)["ms"]
    data["contents"] = [block.resource.text for block in result.content if block.type == "resource"]
    for key, expected in case.expected.items():
        if key == "within_s" and not is_timed:
            continue
        try:
            is_right = CHECKS[key](data, expected)
        except ValueError:
            # It printed no answers at all.
            is_right = False
        assert is_right, f"{key} is not {shortened(expected)} of {told}"


@asynccontextmanager
async def serving(folder, transport):
    # As little of output and results as shows that there is a bound. The end of each program is waited for, the longest
    # by a soak.
    results = {"keepFor": "1s", "keptOutputKB": 128, "maxFilesKB": 1024, "detachAfter": "55s"}
    config = configuration(
        folder,
        pool=POOL,
        defaultCpus=1,
        limits={"killOutputMB": 8},
        results=results,
        languageSettings={"python": {"pool": PYTHON_POOL}},
    )
    async with isolator(folder, f"{transport}-auto", config) as server:
        for language in HELLO:
            assert not (await server.call(language=language, entrypoint_code=HELLO[language])).is_error
        server.before = usage(server)
        yield server


def usage(server):
    """Memory in KiB, and open files."""
    return processes.status(server.pid, "VmRSS"), processes.open_files(server.pid)


def check_growth(server):
    """Sees that a server does not hold much more than in the beginning."""
    (memory, files), (memory_before, files_before) = usage(server), server.before
    assert memory - memory_before < GROWTH_KIB, f"{memory_before} KiB have become {memory}"
    assert files - files_before < GROWTH_FILES, f"{files_before} open files have become {files}"


def transports(case):
    """Over which the program runs."""
    if scope.EVERYTHING:
        return ["stdio", "http"]
    return ["stdio"] if "within_s" in case.expected else ["http"]


RUNS = [
    pytest.param(transport, case, marks=pytest.mark.alone if transport == "stdio" else ())
    for transport in ("stdio", "http")
    for case in CASES
    if transport in transports(case)
]


@pytest.fixture(scope="module")
async def outcomes(request, anyio_backend, tmp_path_factory):
    """The programs that run over a transport."""
    is_timed = request.param == "stdio"
    cases = [run["case"] for run in chosen(request, "test_a_program_does_no_harm") if run["outcomes"] == request.param]
    async with serving(tmp_path_factory.mktemp(request.param), request.param) as server:

        async def run_one(case):
            await run(server, case, is_timed)
            # Over HTTP the next program shows it.
            if is_timed:
                await check_that_it_serves(server)

        async with side_by_side(run_one, cases, TIMED_AT_ONCE if is_timed else AT_ONCE) as outcomes:
            yield outcomes
        await check_that_it_serves(server)
        check_growth(server)


@pytest.mark.parametrize(("outcomes", "case"), RUNS, ids=str, indirect=["outcomes"], scope="module")
async def test_a_program_does_no_harm(outcomes, case):
    await outcomes[case].check()
