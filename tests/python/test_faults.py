"""Faults of what a server stands on, made for real: of the engine, of sandboxes, of the disk, of servers, of clients.

Whatever happens, every request is answered in its time, with its result or with what is wrong. Meanwhile the server
costs and says little, and when it is over it serves again by itself. What every test's server leaves is looked at when
it ends.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import time
from contextlib import contextmanager

import anyio
import docker_engine
import engine
import processes
import pytest
import scope
from by_hand import by_hand, cancel, post, python, request, run
from disk import Disk
from dockerd import own_dockerd
from faults import (
    ANSWERED_WITHIN_S,
    FIGURES,
    IMAGES,
    NO_POOL,
    POOLED,
    ask,
    at_rest,
    check_refusal,
    collect,
    configuration,
    copy_images,
    head,
    is_filled,
    is_refused,
    recovers,
    running,
    serving,
    succeeds,
)
from server import instances, listening, process_with, until

SEED = 20

# How long an engine is away. An hour would be no different from a minute.
OUTAGE_S = float(os.environ.get("ISOLATOR_TEST_OUTAGE_S") or (20 if scope.EVERYTHING else 5))

# Less than any call to an engine may take.
MOMENT_S = 3

# An engine that is not there refuses at once.
REFUSED_WITHIN_S = 20

any_engine = pytest.mark.any_engine
on_docker = pytest.mark.only_on("docker")
on_embedded = pytest.mark.only_on("embedded")


@pytest.fixture(scope="module", autouse=True)
def own_engine(tmp_path_factory):
    """An engine for these tests alone: a daemon, or a folder of images."""
    assert os.geteuid() == 0, "only root can have an engine of its own: run these tests as root"
    folder = tmp_path_factory.mktemp("engine")
    with pytest.MonkeyPatch.context() as environment:
        if engine.KIND == "embedded":
            copy_images(folder)
            environment.setenv("XDG_DATA_HOME", str(folder))
            yield folder
            return
        assert shutil.which("dockerd"), "there is no dockerd here, and a server's own can't be harmed: make engine"
        with own_dockerd(folder, IMAGES) as daemon:
            environment.setenv("DOCKER_HOST", daemon.host)
            yield daemon


@pytest.fixture
def dockerd(own_engine):
    return own_engine


@pytest.fixture
def dice():
    return random.Random(SEED)


# Docker's daemon.


@on_docker
@pytest.mark.parametrize(("end", "outage"), [("stop", 0), ("stop", OUTAGE_S), ("kill", 0)])
async def test_dockerd_ends_and_comes_back(tmp_path, dockerd, end, outage):
    async with serving(tmp_path) as server:
        await is_filled(server)
        with at_rest(server):
            async with running(server) as first, running(server) as second:
                await anyio.to_thread.run_sync(getattr(dockerd, end))
            for result in first + second:
                assert result.structured_content is None, result.content
            until_s = time.monotonic() + outage
            while True:
                await is_refused(server, "no container engine answers at unix://", within=REFUSED_WITHIN_S)
                if time.monotonic() > until_s:
                    break
                await anyio.sleep(1)
            before = dockerd.calls("POST /v1.41/containers/create")
            await anyio.to_thread.run_sync(dockerd.start)
        await recovers(server)
        # Those that were due all the time do not come at once.
        assert dockerd.calls("POST /v1.41/containers/create") - before <= 2 * POOLED + 2
        await is_filled(server)


@on_docker
async def test_dockerd_is_killed_in_the_midst_of_calls(tmp_path, dockerd, dice):
    async with serving(tmp_path) as server:
        for _ in range(4):
            with at_rest(server):
                async with anyio.create_task_group() as calls:
                    for _ in range(POOLED + 1):
                        calls.start_soon(ask, server)
                    await anyio.sleep(dice.uniform(0, 0.5))
                    await anyio.to_thread.run_sync(dockerd.kill)
                    await anyio.to_thread.run_sync(dockerd.start)
            await recovers(server)
        await is_filled(server)


@on_docker
@pytest.mark.parametrize("moment", ["idle", "filling", "starting", "running", "removing"])
async def test_dockerd_hangs_for_a_moment(tmp_path, dockerd, dice, moment):
    """So short that calls only take longer."""
    async with serving(tmp_path) as server, anyio.create_task_group() as calls:
        if moment == "filling":
            await anyio.sleep(dice.uniform(0, 1))
        else:
            await is_filled(server)
        if moment == "starting":
            calls.start_soon(succeeds, server)
            await anyio.sleep(dice.uniform(0, 0.02))
        if moment == "running":
            calls.start_soon(succeeds, server, "import time; time.sleep(1); print('x')")
            await anyio.sleep(0.5)
        if moment == "removing":
            await succeeds(server)
            # Removals begin when no request has come for a moment.
            await anyio.sleep(dice.uniform(0.05, 0.2))
        with at_rest(server), dockerd.hung():
            # One more than wait.
            for _ in range(POOLED + 1):
                calls.start_soon(succeeds, server)
            await anyio.sleep(MOMENT_S)


@pytest.mark.release
@on_docker
async def test_dockerd_hangs_for_longer_than_anybody_waits(tmp_path, dockerd):
    folders = [tmp_path / "serving", tmp_path / "stopping"]
    for folder in folders:
        folder.mkdir()
    with (folders[1] / "log").open("w") as log:
        async with (
            serving(folders[0]) as server,
            by_hand(folders[1], configuration(folders[1]), log) as stopping,
        ):
            await stopping.begin()
            await is_filled(server)
            (instance,) = instances(folders[1])
            await until(lambda: len(engine.sandboxes(instance)) == POOLED, 60, "sandboxes of the other")
            async with running(server, "import time; time.sleep(1)", timeout="2s") as results:
                with dockerd.hung(), at_rest(server):
                    async with anyio.create_task_group() as calls:
                        for _ in range(POOLED + 1):
                            calls.start_soon(is_refused, server, "did not")
                        stopping.process.terminate()
                        with anyio.fail_after(40):
                            assert await stopping.process.wait() != 0
                    with anyio.fail_after(60):
                        while not results:
                            await anyio.sleep(0.1)
            assert results[0].structured_content is None, results[0].content
            await recovers(server)
            # What was asked for just then may come after all, and is noticed a minute later.
            await until(lambda: len(engine.sandboxes(server.instance)) >= POOLED, 60, "sandboxes")
            assert re.search("`isolator .*gc`", (folders[1] / "log").read_text().splitlines()[-1])
            await anyio.to_thread.run_sync(collect, folders[1])
            assert engine.left(instance, folders[1]) == []


@on_docker
async def test_docker_s_disk_is_full(tmp_path, dockerd):
    async with serving(tmp_path) as server:
        await is_filled(server)
        with dockerd.disk.full(), at_rest(server):
            # What waits may still serve.
            for _ in range(POOLED):
                await ask(server, within=REFUSED_WITHIN_S)
            refusals = 0
            for _ in range(4):
                # A sandbox that is removed makes room for another.
                dockerd.disk.fill()
                result = await ask(server, within=REFUSED_WITHIN_S)
                if result.is_error:
                    assert "no disk space left" in head(result), result.content
                    refusals += 1
                await anyio.sleep(0.5)
            assert refusals
        await recovers(server)
        await is_filled(server)


# The embedded engine's launchers.


def launchers(pid):
    """The processes of a server that make sandboxes, each the child of another."""
    found = []
    for outer in processes.children(pid):
        found += [outer, *processes.children(outer)]
    return found


def signal_all(pids, signal):
    for pid in pids:
        os.kill(pid, signal)


@pytest.mark.release
@on_embedded
async def test_launchers_that_hang_are_replaced(tmp_path):
    async with serving(tmp_path) as server:
        await is_filled(server)
        hung = launchers(server.pid)
        # A hanging launcher without requests is not noticed.
        used = {pid for outer in processes.children(server.pid) for inner in processes.children(outer)
                if processes.has_sandboxes(inner) for pid in (outer, inner)}
        assert len(used) >= 2, hung
        signal_all(hung, signal.SIGSTOP)
        with at_rest(server):
            for _ in range(POOLED):
                await succeeds(server)
            # Who comes now waits for a launcher, and the next is given another.
            await ask(server)
            await recovers(server)
        assert not used & set(launchers(server.pid)), "those that hung are still there"
        await is_filled(server)


@on_embedded
async def test_launchers_hang_for_a_moment(tmp_path):
    async with serving(tmp_path) as server, anyio.create_task_group() as calls:
        await is_filled(server)
        hung = launchers(server.pid)
        signal_all(hung, signal.SIGSTOP)
        with at_rest(server):
            for _ in range(POOLED + 1):
                calls.start_soon(succeeds, server)
            await anyio.sleep(MOMENT_S)
            signal_all(hung, signal.SIGCONT)


@on_embedded
async def test_the_disk_of_the_state_is_full(tmp_path):
    disk = Disk(tmp_path / "state", 64 << 20)
    try:
        disk.fill()
        async with serving(disk.directory, tmp_path) as server:
            with at_rest(server):
                for _ in range(3):
                    await is_refused(server, "no disk space left", within=REFUSED_WITHIN_S)
                    await anyio.sleep(1)
            disk.empty()
            await recovers(server)
            await is_filled(server)
            # What is there already needs no more.
            with disk.full(), at_rest(server):
                for _ in range(POOLED + 1):
                    await succeeds(server)
    finally:
        disk.close()


# Sandboxes.


@pytest.mark.parametrize("fault", engine.RUNNING_FAULTS)
async def test_a_sandbox_is_damaged_while_its_program_runs(tmp_path, fault):
    # This looks as if the program had ended its own sandbox.
    is_its_own = (engine.KIND, fault) == ("embedded", "killed")
    async with serving(tmp_path, pool=NO_POOL) as server:
        async with running(server, timeout="2s" if fault == "paused" else "30s") as results:
            (sandbox,) = engine.sandboxes(server.instance)
            engine.harm(sandbox, fault)
        (result,) = results
        if is_its_own:
            assert result.structured_content["status"] == "killed", result.content
        else:
            assert "removed, stopped or paused from outside" in head(result), result.content
        await succeeds(server)


async def test_a_sandbox_is_paused_for_a_moment_while_its_program_runs(tmp_path):
    async with serving(tmp_path, pool=NO_POOL) as server:
        async with running(server, "import time; time.sleep(1); print('x')", timeout="20s") as results:
            (sandbox,) = engine.sandboxes(server.instance)
            engine.harm(sandbox, "paused")
            await anyio.sleep(MOMENT_S)
            engine.harm(sandbox, "thawed")
        assert results[0].structured_content["stdout"] == "runs\nx\n", results[0].content


async def test_all_waiting_sandboxes_are_damaged_at_once(tmp_path):
    async with serving(tmp_path) as server:
        for fault in engine.RUNNING_FAULTS:
            await is_filled(server)
            with at_rest(server):
                for sandbox in engine.sandboxes(server.instance):
                    engine.harm(sandbox, fault)
                if fault == "paused":
                    # The one that was thawed may fail, which is not the program's fault.
                    await ask(server)
                await succeeds(server)
        await is_filled(server)


# Images.

SHELL = {"image": "isolator/javascript", "extensions": [".sh"], "command": ["sh", "{file}"]}


@pytest.mark.parametrize("pooled", [0, POOLED])
async def test_the_image_is_removed(tmp_path, own_engine, pooled):
    call = {"language": "shell", "code": "echo x"}
    languages = {"shell": SHELL, "python": {"enabled": False}}
    async with serving(tmp_path, languages=languages, pool={"size": pooled, "hot": min(pooled, 1)}) as server:
        if pooled:
            await is_filled(server)
        await succeeds(server, **call)
        # Docker keeps what a container is made from.
        await until(lambda: len(engine.sandboxes(server.instance)) == pooled, 60, "the used one is removed")
        with at_rest(server):
            with engine_without("isolator/javascript", own_engine):
                answers = [await ask(server, within=REFUSED_WITHIN_S, **call) for _ in range(4)]
                if pooled == 0 or engine.KIND == "embedded":
                    assert "isolator/javascript" in head(answers[-1]) and answers[-1].is_error, answers[-1].content
        await recovers(server, **call)


@contextmanager
def engine_without(image, own_engine):
    """An engine that has lost an image."""
    if engine.KIND == "docker":
        docker_engine.remove_image(image)
        try:
            yield
        finally:
            own_engine.load(image)
        return
    digest = engine.image_id(image).removeprefix("sha256:")
    place = own_engine / "isolator/images" / digest
    aside = own_engine / digest
    place.rename(aside)
    try:
        yield
    finally:
        aside.rename(place)


# Servers.

# What a server does when it is ended, and how long it has had for it at most.
STAGES = {"starting": 0.2, "filling": 1.5, "serving": 1.0, "closing": 0.3}
ROUNDS = 4 if scope.EVERYTHING else 2
ENDED_AT_ONCE = 4

# How it is ended, and the exit codes that it may have. One that is not ready for signals yet is ended by them, and has
# nothing yet.
ENDS = {"killed": {-9}, "stopped": {0, -15}, "left": {0, -15}}


@pytest.mark.parametrize("end", ENDS)
async def test_nothing_is_left_whenever_servers_are_ended(tmp_path, dice, end):
    """Side by side in one place, where each that starts sweeps what the dead have left."""
    config = configuration(tmp_path)
    seen = set()
    limit = anyio.CapacityLimiter(ENDED_AT_ONCE)

    async def end_one(stage, delay, log):
        async with limit, by_hand(tmp_path, config, log) as server:
            if stage in ("serving", "closing"):
                await server.begin()
                # Some have ended by then, and some have not.
                codes = ["print('x')", "import time; time.sleep(600)"]
                await server.send(*(python(number, codes[number % 2]) for number in range(4)))
            if stage == "closing":
                server.process.terminate()
            await anyio.sleep(delay)
            seen.update(instances(tmp_path))
            if end == "left":
                await server.end()
            else:
                server.process.send_signal(signal.SIGKILL if end == "killed" else signal.SIGTERM)
            with anyio.fail_after(40):
                code = await server.process.wait()
            assert code in ENDS[end], code

    with (tmp_path / "log").open("w") as log:
        async with anyio.create_task_group() as servers:
            for stage, longest in list(STAGES.items()) * ROUNDS:
                servers.start_soon(end_one, stage, dice.uniform(0, longest), log)
    if end == "killed":
        await anyio.to_thread.run_sync(collect, tmp_path)
    assert seen, "no server had a name"
    left = {instance: engine.left(instance, tmp_path) for instance in seen}
    assert not any(left.values()), left


def has_paused(instance):
    """Whether it has a sandbox that stays. Before its first one, Docker has a container that only fills a volume."""
    return any(sandbox.state == "paused" for sandbox in engine.sandboxes(instance))


async def test_a_killed_server_s_neighbour_is_left_alone(tmp_path):
    folders = [tmp_path / name for name in ("state", "elsewhere")]
    for folder in folders:
        folder.mkdir()
    config = configuration(folders[0])
    async with serving(folders[0]) as server:
        await is_filled(server)
        async with running(server, "import time; time.sleep(8); print('x')") as results:
            # What takes the place of the one that runs.
            await until(lambda: len(engine.sandboxes(server.instance)) == POOLED + 1, 60, "one more sandbox")
            with (tmp_path / "log").open("w") as log:
                async with by_hand(folders[0], config, log) as doomed:
                    await doomed.begin()
                    (instance,) = instances(folders[0]) - {server.instance}
                    await until(lambda: has_paused(instance), 60, "a paused sandbox of the other")
                    before = {sandbox.id for sandbox in engine.sandboxes(server.instance)}
                    doomed.process.kill()
                    await doomed.process.wait()
                # Others start and collect, where its lock is to be seen and where it is not.
                for folder in folders:
                    async with by_hand(folder, config, log) as third:
                        await third.begin()
                        await third.send(python(1, "print('x')"))
                        await third.answer(1, 60)
                    await anyio.to_thread.run_sync(collect, folder)
            assert engine.left(instance, folders[0]) == []
            now = {sandbox.id for sandbox in engine.sandboxes(server.instance)}
            assert before == now, "a living server's sandboxes were touched"
        assert results[0].structured_content["stdout"] == "runs\nx\n", results[0].content


# A machine of another name, as one is that was renamed, and each container that a server runs in.
RENAMED = ["unshare", "--uts", "sh", "-c", 'echo renamed >/proc/sys/kernel/hostname && exec "$@"', "-"]


async def test_a_killed_server_is_swept_although_its_machine_was_renamed(tmp_path):
    with (tmp_path / "log").open("w") as log:
        async with by_hand(tmp_path, configuration(tmp_path), log) as server:
            await server.begin()
            (instance,) = instances(tmp_path)
            await until(lambda: has_paused(instance), 60, "a paused sandbox")
            await anyio.to_thread.run_sync(collect, tmp_path, RENAMED)
            assert engine.sandboxes(instance), "a living server's sandboxes were removed"
            server.process.kill()
            await server.process.wait()
    await anyio.to_thread.run_sync(collect, tmp_path, RENAMED)
    assert engine.left(instance, tmp_path) == []


# Clients.


async def test_a_client_is_gone_while_its_programs_run(tmp_path):
    with (tmp_path / "log").open("w") as log:
        async with by_hand(tmp_path, configuration(tmp_path), log) as server:
            await server.begin()
            (instance,) = instances(tmp_path)
            await server.send(*(python(number, "import time; time.sleep(60)") for number in range(3)))
            await until(lambda: len(engine.sandboxes(instance)) >= 3, 60, "sandboxes")
            # No client reads its answers either.
            server.stop_reading()
            await server.end()
            # It waits for programs only if a client reads what they print.
            with anyio.fail_after(30):
                assert await server.process.wait() == 0
    assert engine.left(instance, tmp_path) == []


async def test_calls_are_cancelled_before_during_and_after(tmp_path, dice):
    with (tmp_path / "log").open("w") as log:
        async with by_hand(tmp_path, configuration(tmp_path), log) as server:
            await server.begin()
            # A cancellation that comes before its request has no effect.
            await server.send(cancel("early"), python("early", "print('x')"))
            assert output(await server.answer("early", 60)) == "x\n"
            await server.send(cancel("early"), cancel("early"), cancel("never"))
            numbers = range(24)
            for number in numbers:
                await server.send(python(number, "import time; time.sleep(0.1); print('x')"))
                await anyio.sleep(dice.uniform(0, 0.15))
                await server.send(cancel(number))
            await server.send(python("late", "print('x')"))
            assert output(await server.answer("late", 60)) == "x\n"
            assert len(server.answers["early"]) == 1
            assert all(len(server.answers[number]) <= 1 for number in numbers)
            (instance,) = instances(tmp_path)
            await until(lambda: len(engine.sandboxes(instance)) == POOLED, 60, "those that were cancelled are gone")


def output(answer):
    return answer["result"]["structuredContent"]["stdout"]


DEEP = "[" * 100_000 + "]" * 100_000
LONG = b"i" * (1 << 20)

# Lines, and the identifier under which they are answered, if they have one.
LINES = {
    "nothing": (b"", None),
    "truncated": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{', None),
    "binary": (bytes(byte for byte in range(256) if byte != 10), None),
    "no text": (b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}', None),
    "half a character": ('{"jsonrpc":"2.0","id":1,"method":"é'.encode()[:-1], None),
    "a number": (b"42", None),
    "null": (b"null", None),
    "a list": (b"[]", None),
    "a batch": (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', None),
    "deep": (f'{{"jsonrpc":"2.0","id":"deep","method":"ping","params":{DEEP}}}'.encode(), "deep"),
    "deep arguments": (
        b'{"jsonrpc":"2.0","id":"deeper","method":"tools/call","params":{"name":"execute_code","arguments":{"a":'
        + DEEP.encode()
        + b"}}}",
        "deeper",
    ),
    "deep and open": (b"[" * 1_000_000, None),
    "no revision": (b'{"id":"none","method":"ping"}', "none"),
    "another revision": (b'{"jsonrpc":"1.0","id":"one","method":"ping"}', "one"),
    "an unknown method": (b'{"jsonrpc":"2.0","id":"method","method":"no/such"}', "method"),
    "a long method": (b'{"jsonrpc":"2.0","id":"long","method":"' + b"m" * (1 << 20) + b'"}', "long"),
    "a long identifier": (b'{"jsonrpc":"2.0","id":"' + LONG + b'","method":"no/such"}', LONG.decode()),
    "a method that is a number": (b'{"jsonrpc":"2.0","id":"number","method":5}', "number"),
    "parameters that are a list": (b'{"jsonrpc":"2.0","id":"list","method":"tools/call","params":[1]}', "list"),
    "no parameters": (b'{"jsonrpc":"2.0","id":"bare","method":"tools/call"}', "bare"),
    "an identifier that is an object": (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', None),
    "an identifier that is null": (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None),
    "a negative identifier": (b'{"jsonrpc":"2.0","id":-1,"method":"ping"}', -1),
    "an answer that nobody asked for": (b'{"jsonrpc":"2.0","id":7,"result":{}}', None),
    "an error that nobody asked for": (b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"x"}}', None),
    "more than a message may be": (b"x" * (40 << 20), None),
}


@any_engine
async def test_invalid_messages_are_refused_or_ignored_on_standard_input(tmp_path):
    with (tmp_path / "log").open("w") as log:
        async with by_hand(tmp_path, configuration(tmp_path, pool=NO_POOL), log) as server:
            await server.begin()
            for name, (line, number) in LINES.items():
                ping = f"after {name}"
                await server.send(line, request(ping, "ping"))
                assert "result" in await server.answer(ping, 30), name
                if number is not None:
                    answer = await server.answer(number, 30)
                    assert "result" in answer or answer["error"]["message"], name
            await server.send(python("last", "print('x')"))
            assert output(await server.answer("last", 60)) == "x\n"
    assert (tmp_path / "log").stat().st_size < 100_000, "what is no message is repeated in the log"


# What is sent over HTTP, and the status that it is answered with.
BODIES = {
    "nothing": (b"", 400),
    "truncated": (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{', 400),
    "binary": (bytes(range(256)), 400),
    "no text": (b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}', 400),
    "deep": (f'{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{DEEP}}}'.encode(), 400),
    "deep and open": (b"[" * 1_000_000, 400),
    "a batch": (b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]', 400),
    "an identifier that is an object": (b'{"jsonrpc":"2.0","id":{},"method":"tools/list"}', 400),
    "more than a message may be": (b"x" * (33 << 20), 413),
}


@any_engine
async def test_invalid_messages_are_refused_over_http(tmp_path):
    async with listening(tmp_path, configuration(tmp_path, pool=NO_POOL)) as url:
        for name, (body, expected) in BODIES.items():
            with anyio.fail_after(30):
                status, answer = await post(url, body, "tools/list")
            assert status == expected, f"{name}: {status} {answer[:500]}"
            assert 0 < len(answer) < 1000, f"{name}: {answer[:2000]}"
        # And what ends in the middle.
        host, port = url.split("/")[2].split(":")
        for piece in (b"POST /mcp HT", b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"):
            async with await anyio.connect_tcp(host, int(port)) as stream:
                await stream.send(piece)
        status, answer = await run(url, 1, "print('x')")
        assert output(json.loads(answer)) == "x\n", status


# Calls at once, of which most find no place.
CALLS = 1000
PLACES = {"maxRunning": 4, "maxRunningPerClient": 4, "maxQueue": 8, "queueTimeout": "30s"}
MOST_KIB = 128 * 1024


def check_all(answers, pid):
    """Each of a thousand calls gets its own result, or a refusal because there are too many."""
    served = 0
    for number, answer in enumerate(answers):
        result = answer["result"]
        if result.get("isError"):
            check_refusal(result["content"][0]["text"])
            assert "are running and" in result["content"][0]["text"], result
        else:
            assert output(answer) == f"{number}\n", answer
            served += 1
    assert served >= PLACES["maxRunning"] + PLACES["maxQueue"], f"{served} were served"
    peak = processes.status(pid, "VmHWM")
    FIGURES.info("%d of %d served, %d KiB at most", served, len(answers), peak)
    assert peak < MOST_KIB, f"{peak} KiB"


@any_engine
async def test_a_thousand_calls_at_once_on_standard_input(tmp_path):
    with (tmp_path / "log").open("w") as log:
        async with by_hand(tmp_path, configuration(tmp_path, requests=PLACES), log) as server:
            await server.begin()
            await server.send(*(python(number, f"print({number})") for number in range(CALLS)))
            check_all(await server.all_answers(range(CALLS), ANSWERED_WITHIN_S), server.pid)
            await server.send(python("last", "print('x')"))
            assert output(await server.answer("last", 60)) == "x\n"
            assert all(len(server.answers[number]) == 1 for number in range(CALLS))


@any_engine
async def test_a_thousand_calls_at_once_over_http(tmp_path):
    # Each has a descriptor, here and in the server.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    answers = {}
    try:
        # All come from one address.
        http = {"maxConnectionsPerAddress": CALLS}
        async with listening(tmp_path, configuration(tmp_path, requests=PLACES, http=http)) as url:
            pid = process_with(f"XDG_STATE_HOME={tmp_path}")

            async def call(number):
                with anyio.fail_after(ANSWERED_WITHIN_S):
                    status, answer = await run(url, number, f"print({number})")
                assert status == 200, answer
                answers[number] = json.loads(answer)

            async with anyio.create_task_group() as calls:
                for number in range(CALLS):
                    calls.start_soon(call, number)
            check_all([answers[number] for number in range(CALLS)], pid)
            assert output(json.loads((await run(url, 1, "print('x')"))[1])) == "x\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
