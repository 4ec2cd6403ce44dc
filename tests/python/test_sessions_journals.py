"""Journals on a Valkey server: a session is replayed on another node when its own is lost, whatever the server does."""

import os
import re
import signal
import socket
import subprocess
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from server import command, configuration, environment, tokens, until
from session_calls import Tools, open_session
from valkey import PASSWORD, valkey

pytestmark = pytest.mark.any_engine

POOL = {"size": 0, "hot": 0}
WRITTEN_WITHIN_S = 10
# A cell that waited for the server would take its timeout of a second.
NOT_SLOWED_S = 0.8


class Node:
    """A server of Isolator that shares the server for journals with others."""

    def __init__(self, process, url, log):
        self.process, self.url, self.log = process, url, log

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0


@contextmanager
def node(folder, journals, secrets, name=None, **sessions):
    """A node with these journals, at whose end it is gone."""
    folder.mkdir()
    settings = {"journals": journals} | sessions
    named = {"node": {"name": name}} if name else {}
    config = configuration(folder, pool=POOL, sessions=settings, http={"tokens": str(secrets)}, **named)
    log = folder / "log"
    with log.open("w") as file:
        started = [*command(config), "--http", "127.0.0.1:0", "--no-socket"]
        process = subprocess.Popen(started, env=environment(folder), stdin=subprocess.DEVNULL, stderr=file)
    try:
        until_s = time.monotonic() + 30
        while not (url := re.search(r'url="([^"]+)"', log.read_text())):
            assert process.poll() is None and time.monotonic() < until_s, log.read_text()
            time.sleep(0.05)
        yield Node(process, url[1], log)
        if process.poll() is None:
            process.terminate()
            assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def client(node, secret):
    """The tools of a node, for the holder of a token."""
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=60)
    place = streamable_http_client(node.url, http_client=http, terminate_on_close=False)
    async with Client(place, read_timeout_seconds=60) as one:
        yield await Tools.of(one)


@pytest.fixture
def secrets(tmp_path):
    """A file of tokens, and two of them."""
    lines, made = tokens("one", "two")
    (tmp_path / "tokens").write_text("".join(lines))
    return tmp_path / "tokens", made


async def replayed(tools, handle):
    session = await open_session(tools, replay=handle)
    return session, session.opened["replayed"]


async def is_written(server, records):
    """Waits until the only journal there has this number of records or more."""

    def is_there():
        names = server.ask("KEYS", "isolator:journal:*")
        return len(names) == 1 and server.ask("LLEN", names[0]) >= records

    await until(is_there, WRITTEN_WITHIN_S, "the journal is written")
    return server.ask("KEYS", "isolator:journal:*")[0]


async def test_a_session_of_a_lost_node_is_replayed_on_another_one(tmp_path, secrets):
    file, (secret, other_secret) = secrets
    with valkey(tmp_path / "valkey", tls=True) as server:
        with node(tmp_path / "a", server.settings, file) as a, node(tmp_path / "b", server.settings, file) as b:
            async with client(a, secret) as tools:
                given = [{"filename": "given.txt", "content": "a secret"}]
                session = await open_session(tools, files=given)
                await session.cell("x = [open('given.txt').read()]")
                await session.command("echo kept > b.txt")
                await session.cell("x.append('rewound')")
                await session.rewind(1)
                await session.cell("x.append(open('b.txt').read())")
                value = await session.value("x")
                name = await is_written(server, 2)
                await until(lambda: server.ask("LLEN", name) >= 2, WRITTEN_WITHIN_S, "the last step is written")
                await anyio.sleep(0.2)
                a.kill()
            # The server can't read it, and forgets it a day after the session can have ended.
            stored = b"".join(server.ask("LRANGE", name, 0, -1))
            assert stored and not any(text in stored for text in (b"secret", b"given", b"append", b"python"))
            assert session.id.encode() not in name + stored and b"one" not in name
            assert 24 * 3600 < server.ask("TTL", name) <= 32 * 3600
            async with client(b, other_secret) as stranger:
                await stranger.refuses("open_session", "replay", language="python", replay=session.id)
            async with client(b, secret) as tools:
                other, told = await replayed(tools, session.id)
                assert (told["failed"], told["forgotten"], told["not_run"]) == ([], 0, 0), told
                assert await other.value("x") == value == "['a secret', 'kept\\n']"
                assert (await other.command("cat b.txt"))["stdout"] == "kept\n"
                # What was replayed is itself in a journal, also after the end of its session and of its node.
                await other.close()
                b.stop()
            names = server.ask("KEYS", "isolator:journal:*")
            assert len(names) == 2
            (own,) = set(names) - {name}
            assert 23 * 3600 < server.ask("TTL", own) <= 24 * 3600
        with node(tmp_path / "c", server.settings, file) as c:
            async with client(c, secret) as tools:
                third, told = await replayed(tools, other.id)
                assert told["failed"] == [] and await third.value("x") == value


async def test_sessions_go_on_without_the_server_and_their_journals_come_later(tmp_path, secrets):
    file, (secret, _) = secrets
    with valkey(tmp_path / "valkey") as server:
        with node(tmp_path / "a", server.settings, file) as a, node(tmp_path / "b", server.settings, file) as b:
            async with client(a, secret) as tools, client(b, secret) as others:
                session = await open_session(tools)
                await session.cell("x = 1")
                await is_written(server, 1)
                for stop, go_on in [
                    (server.stop, server.start),
                    # It is there, and does not answer.
                    (lambda: os.kill(server.process.pid, signal.SIGSTOP), lambda: os.kill(server.process.pid, signal.SIGCONT)),
                ]:
                    stop()
                    notes = []
                    with anyio.fail_after(30):
                        while not notes:
                            began = time.monotonic()
                            notes = (await session.cell("x += 1")).get("notes", [])
                            assert time.monotonic() - began < NOT_SLOWED_S
                            await anyio.sleep(0.1)
                    assert len(notes) == 1 and "the journal of this session is not complete" in notes[0], notes
                    # It is told once.
                    assert "notes" not in await session.cell("x += 1")
                    value = await session.value("x")
                    failed = await others.call("open_session", {"language": "python", "replay": session.id})
                    assert failed.is_error and "No session was opened" in failed.content[0].text, failed.content
                    go_on()
                    name = await is_written(server, 1)
                    said = a.log.read_text
                    await until(lambda: "journals are written again" in said(), WRITTEN_WITHIN_S, "it is told")
                    other, told = await replayed(others, session.id)
                    assert told["failed"] == [] and await other.value("x") == value
                    await other.close()
                    server.ask("DEL", *[key for key in server.ask("KEYS", "*") if key != name])
                    a.log.write_text("")


async def test_a_server_that_is_hostile_gets_no_further_than_its_journal(tmp_path, secrets):
    file, (secret, other_secret) = secrets
    with valkey(tmp_path / "valkey") as server:
        async with AsyncExitStack() as stack:
            a = stack.enter_context(node(tmp_path / "a", server.settings, file))
            b = stack.enter_context(node(tmp_path / "b", server.settings, file))
            one, own = await stack.enter_async_context(client(a, secret)), await stack.enter_async_context(client(b, secret))
            session = await open_session(one)
            for number in range(3):
                await session.cell(f"x = {number}")
                name = await is_written(server, number + 2)
            records = server.ask("LRANGE", name, 0, -1)
            foreign = await open_session(await stack.enter_async_context(client(b, other_secret)))
            await foreign.cell("x = 'foreign'")
            await until(lambda: len(server.ask("KEYS", "*")) == 2, WRITTEN_WITHIN_S, "the other journal is written")
            (theirs,) = set(server.ask("KEYS", "*")) - {name}
            changed = bytearray(records[1])
            changed[-1] ^= 1
            for planted in (
                server.ask("LRANGE", theirs, 0, -1),
                [records[0], bytes(changed)],
                [records[0], records[2], records[1]],
                records[1:],
                [records[0], records[0]],
                [b"", b"x" * 100],
                [b"\x01" + b"\0" * 1000] * 100,
            ):
                server.ask("DEL", name)
                server.ask("RPUSH", name, *planted)
                failed = await own.call("open_session", {"language": "python", "replay": session.id})
                assert failed.is_error and "can't be used" in failed.content[0].text, failed.content
            # Another kind of value, and more than a journal can be.
            server.ask("DEL", name)
            server.ask("SET", name, "text")
            failed = await own.call("open_session", {"language": "python", "replay": session.id})
            assert failed.is_error and "could not be asked" in failed.content[0].text, failed.content
            server.ask("DEL", name)
            server.ask("RPUSH", name, *[b"x" * 1_000_000] * 40)
            failed = await own.call("open_session", {"language": "python", "replay": session.id})
            assert failed.is_error and "could not be asked" in failed.content[0].text, failed.content
            # The node writes it anew, and so it is whole again.
            server.ask("DEL", name)
            await session.cell("x = 'whole'")
            await is_whole(server, name)
            other, told = await replayed(own, session.id)
            assert (told["steps"], told["failed"]) == (4, []) and await other.value("x") == "'whole'"


async def is_whole(server, name):
    await until(lambda: server.ask("LLEN", name) == 1, WRITTEN_WITHIN_S, "the journal is written anew")


async def test_a_journal_that_can_not_be_written_slows_no_other_one(tmp_path, secrets):
    file, (secret, other_secret) = secrets
    with valkey(tmp_path / "valkey") as server:
        # It closes connections on which more comes at once.
        server.ask("CONFIG", "SET", "proto-max-bulk-len", 1 << 20)
        with node(tmp_path / "a", server.settings, file, journalKB=8192) as a:
            async with client(a, secret) as tools, client(a, other_secret) as others:
                session = await open_session(others)
                await session.cell("x = 0")
                name = await is_written(server, 1)
                large = await open_session(tools)
                await large.cell(f"y = len({os.urandom(700_000).hex()!r})")
                notes, told = [], []
                for number in range(1, 21):
                    before = server.ask("LRANGE", name, 0, -1)
                    told += (await session.cell(f"x = {number}")).get("notes", [])
                    await until(lambda before=before: server.ask("LRANGE", name, 0, -1) != before, 3, "a step is written")
                    notes += (await large.cell("y += 1")).get("notes", [])
                assert len(notes) == 1 and "the journal of this session is not complete" in notes[0], notes
                # When the connection breaks for the first time, it is not known why.
                assert len(told) <= 1, told
                (other,) = set(server.ask("KEYS", "isolator:journal:*")) - {name}
                assert server.ask("MEMORY", "USAGE", other) < 1 << 20
                server.ask("CONFIG", "SET", "proto-max-bulk-len", 512 << 20)
                await until(lambda: server.ask("MEMORY", "USAGE", other) > 1 << 20, 20, "the large journal is written")


async def test_journals_of_a_node_count_after_it_was_started_again(tmp_path, secrets):
    file, (secret, _) = secrets
    with valkey(tmp_path / "valkey") as server:
        journals = server.settings | {"maxMB": 1}

        def stored():
            return {name: server.ask("MEMORY", "USAGE", name) for name in server.ask("KEYS", "isolator:journal:*")}

        async def fill(tools, number):
            made = []
            for _ in range(number):
                before = set(stored())
                session = await open_session(tools)
                await session.cell(f"x = len({os.urandom(50_000).hex()!r})")
                await until(lambda before=before: set(stored()) - before, WRITTEN_WITHIN_S, "a journal")
                made.append(session.id)
            return made

        with node(tmp_path / "other", journals, file, "n2") as other:
            async with client(other, secret) as tools:
                (kept,) = await fill(tools, 1)
                (theirs,) = stored()
                with node(tmp_path / "a", journals, file, "n1") as a:
                    async with client(a, secret) as own:
                        lost = await fill(own, 6)
                    a.kill()
                assert len(stored()) == 7
                connections = re.compile(rb"total_connections_received:(\d+)")
                before = int(connections.search(server.ask("INFO", "stats"))[1])
                for handle in lost[:3]:
                    session, told = await replayed(tools, handle)
                    assert told["failed"] == []
                    await session.close()
                # One of ours to ask, and one of the node for all that it reads.
                assert int(connections.search(server.ask("INFO", "stats"))[1]) <= before + 2
                with node(tmp_path / "again", journals, file, "n1") as a:
                    async with client(a, secret) as own:
                        await fill(own, 6)
                        await until(lambda: sum(map(_of(b":n1:"), stored().items())) <= 1 << 20, WRITTEN_WITHIN_S, "old ones go")
                assert theirs in stored() and kept


def _of(node):
    """The size of a journal if it is one of a node."""
    return lambda item: item[1] if node in item[0] else 0


def doctor_of_journals(folder, journals, name=None):
    """What the doctor says of journals."""
    folder.mkdir()
    named = {"node": {"name": name}} if name else {}
    config = configuration(folder, pool=POOL, sessions={"journals": journals}, **named)
    begun = [*command(config)[:-1], "doctor"]
    done = subprocess.run(begun, env=environment(folder), capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout.partition("sessions.journals\n")[2].partition("\nhost")[0]
    assert said, done.stdout
    return said


def test_the_doctor_says_whether_journals_can_be_kept(tmp_path):
    with valkey(tmp_path / "valkey", tls=True) as server:
        wrong = tmp_path / "wrong"
        wrong.write_text("wrong")
        for number, (changes, said) in enumerate(
            [
                ({}, "a journal can be written, read and removed"),
                ({"passwordFile": str(wrong)}, "MISSING"),
                ({"caFile": None}, "MISSING"),
                ({"keyFile": str(wrong)}, "has 5 bytes"),
            ]
        ):
            journals = {key: value for key, value in (server.settings | changes).items() if value is not None}
            of_journals = doctor_of_journals(tmp_path / str(number), journals)
            assert said in of_journals and ("MISSING" in of_journals) == (number > 0), of_journals
        assert server.ask("KEYS", "*") == []


def test_only_a_node_with_a_name_is_warned_that_journals_can_not_be_counted(tmp_path):
    with valkey(tmp_path / "valkey") as server:
        commands = ["select", "multi", "exec", "del", "rpush", "rpushx", "pexpire", "lrange"]
        rights = ["~isolator:journal:*", *[f"+{name}" for name in commands]]
        server.ask("ACL", "SETUSER", "writer", "on", f">{PASSWORD}", *rights)
        journals = server.settings | {"user": "writer"}
        for name in (None, "n1"):
            said = doctor_of_journals(tmp_path / f"of {name}", journals, name)
            assert "a journal can be written, read and removed" in said and "MISSING" not in said, said
            assert ("can't be counted" in said) == (name is not None), said
        assert server.ask("KEYS", "*") == []


async def test_a_server_that_answers_without_end_is_cut_off(tmp_path, secrets):
    file, (secret, _) = secrets
    (tmp_path / "key").write_text("k" * 64)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        address = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        journals = {"address": address, "keyFile": str(tmp_path / "key"), "timeout": "1s"}
        sent = {"bytes": 0, "most": 0}

        def flood(connection):
            count = 0
            with connection:
                connection.settimeout(2)
                try:
                    connection.sendall(b"*1000000\r\n")
                    while count < 64 << 20:
                        connection.sendall(b"$65536\r\n" + b"x" * 65536 + b"\r\n")
                        count += 65536
                except OSError:
                    pass
            sent["most"] = max(sent["most"], count)

        async def serve():
            while True:
                try:
                    connection, _ = await anyio.to_thread.run_sync(listener.accept)
                except TimeoutError:
                    continue
                await anyio.to_thread.run_sync(flood, connection)

        with node(tmp_path / "a", journals, file) as a:
            async with client(a, secret) as tools, anyio.create_task_group() as tasks:
                tasks.start_soon(serve)
                session = await open_session(tools)
                notes = []
                with anyio.fail_after(30):
                    while not notes:
                        notes = (await session.cell("1")).get("notes", [])
                failed = await tools.call("open_session", {"language": "python", "replay": "0" * 32})
                assert failed.is_error and "could not be asked" in failed.content[0].text
                tasks.cancel_scope.cancel()
        # What the kernel holds on both sides, and what a connection may read.
        assert 0 < sent["most"] < 32 << 20, sent


def test_a_key_that_is_missing_or_short_stops_the_start(tmp_path, secrets):
    file, _ = secrets
    for number, (content, said) in enumerate([(None, "can't be read"), ("short", "has 5 bytes")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        key = folder / "key"
        if content is not None:
            key.write_text(content)
        journals = {"address": "redis://localhost", "keyFile": str(key)}
        config = configuration(folder, pool=POOL, sessions={"journals": journals})
        started = [*command(config), "--http", "127.0.0.1:0"]
        ended = subprocess.run(started, env=environment(folder), capture_output=True, text=True, timeout=30, check=False)
        assert ended.returncode != 0 and said in ended.stderr and str(key) in ended.stderr, ended.stderr
