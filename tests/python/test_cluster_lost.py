"""What happens to calls when a node of a cluster is restarted, drained, killed or unplugged, and when HAProxy is loaded again: no
program is lost, no cell runs twice, and sessions say why they ended."""

import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager

import pytest
from cluster import SESSIONS, cluster, network, wait_until
from cluster_clients import Client, E2b, client, load
from test_cluster import COUNT, SLOW_COUNT, close, is_gone, node_of, one_on_each, sessions, value
from valkey import valkey

pytestmark = [pytest.mark.any_engine, pytest.mark.alone]

# From the moment a node is lost until no new call goes to it.
OUT_WITHIN_S = 1.5

# How long a call on a node that has vanished may take: three seconds until TCP knows, and another run.
SLOWEST_S = 8

# How many calls are made while the nodes are restarted.
CALLS = 1000

# A program that takes a moment, so that some always run.
BRIEF = "import time; time.sleep(0.05); print(%d)"

# A program that prints something else each time.
RANDOM = "import os; print(os.urandom(8).hex())"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Three nodes and HAProxy, for all tests."""
    with cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def all_serve(nodes):
    """Whatever a test does to the nodes, all of them serve when the next one begins."""
    nodes.wait_until_all_serve()


class Counted:
    """A session whose cells count themselves all the time. It must answer each with the next number."""

    def __init__(self, nodes, handle, code=COUNT):
        self.caller, self.handle, self.code = Client(nodes.place, nodes.token), handle, code
        self.cells, self.wrong = 0, []
        self._ends = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self):
        while not self._ends.is_set():
            answer = self.caller.cell(self.handle, self.code)
            self.cells += 1
            if answer.status != 200 or answer.result["isError"] or answer.data["result"] != str(self.cells):
                self.wrong.append((answer.status, answer.outcome, answer.body[:300]))
                return

    def end(self):
        self._ends.set()
        self.thread.join()
        self.caller.close()
        assert self.wrong == [] and self.cells > 0, (self.cells, self.wrong)


@contextmanager
def counted(nodes, found, code=COUNT):
    """Sessions that count their cells meanwhile, and none of which may be repeated or lost."""
    running = [Counted(nodes, handle, code) for handle in found]
    try:
        yield running
    finally:
        for one in running:
            one.end()


@pytest.mark.parametrize("old", [False, True])
def test_a_reload_of_the_balancer_loses_no_call_and_no_session(nodes, old):
    with client(nodes) as caller:
        found = sessions(nodes, caller)
        with load(nodes, ways=["MCP"] if old else ["MCP", "SandboxFusion", "Piston"], old=old) as calls, counted(nodes, found.values()):
            for _ in range(3):
                before = calls.done()
                nodes.haproxy.reload()
                wait_until(lambda before=before: calls.done() > before + 50, 30, "calls after a reload")
        close(caller, found)


def test_restarts_of_all_nodes_in_turn_cost_no_call(nodes):
    with client(nodes) as caller:
        found = sessions(nodes, caller)
        with load(nodes) as calls:
            for node in nodes.nodes:
                node.restart()
                nodes.wait_until_all_serve()
            wait_until(lambda: calls.done() >= CALLS, 60, "enough calls")
        for name, handle in found.items():
            is_gone(caller.cell(handle, "1"), name)


def test_a_node_that_an_operator_drains_gets_no_new_calls_and_serves_its_sessions(nodes):
    node = nodes.nodes[0]
    with client(nodes) as caller:
        found = sessions(nodes, caller)
        with load(nodes, code=BRIEF), counted(nodes, found.values()):
            drained = node.drain("--wait")
            assert drained.returncode == 0, drained.stderr
            wait_until(lambda: nodes.haproxy.states()[node.name] != "UP", 5, "it is out of the rotation")
            with client(nodes) as other:
                assert {other.run("print(1)").node for _ in range(12)} == {"n2", "n3"}
                opened = other.open()
                assert node_of(opened) != node.name
                other.call("close_session", session=opened)
        assert value(caller.cell(found[node.name], "6 * 7")) == "42"
        # After its restart it gets calls again.
        with load(nodes, code=BRIEF):
            node.restart()
            nodes.wait_until_all_serve()
        is_gone(caller.cell(found[node.name], "1"), node.name)
        close(caller, found)


def test_a_node_that_is_stopped_serves_its_sessions_until_the_notice_is_over(nodes):
    node = nodes.nodes[2]
    with client(nodes) as caller:
        found = sessions(nodes, caller)
        with load(nodes, code=BRIEF):
            node.signal(signal.SIGTERM)
            wait_until(lambda: nodes.haproxy.states()[node.name] != "UP", OUT_WITHIN_S, "it is out of the rotation")
            answer = caller.cell(found[node.name], "6 * 7")
            assert (value(answer), answer.node) == ("42", node.name)
            assert any("stop" in note for note in answer.data["notes"]), answer.data
            assert node.wait() == 0
            is_gone(caller.cell(found[node.name], "1"), node.name)
            node.start()
            nodes.wait_until_all_serve()
        close(caller, found)


def test_a_session_is_opened_on_another_node_when_one_is_full(nodes):
    with client(nodes) as caller:
        opened = []
        try:
            opened.extend(open_somewhere(caller) for _ in range(3 * SESSIONS))
            all_are_open(caller, opened)
        finally:
            close(caller, dict(enumerate(opened)))


def open_somewhere(caller):
    """The handle of a new session. The order in which the balancer tries the nodes changes with their load, so a call can meet the same
    full node twice, and is refused although another one has room. It did not run, so it is sent again."""

    def open_one():
        answer = caller.call("open_session", language="python")
        if answer.result["isError"]:
            assert answer.outcome == "not-run", answer.body
            return None
        return answer.data["session"]

    return wait_until(open_one, 10, "a session on any node")


def all_are_open(caller, opened):
    """All nodes are full, and the next session is refused in the words of MCP."""
    assert Counter(map(node_of, opened)) == {"n1": SESSIONS, "n2": SESSIONS, "n3": SESSIONS}
    answer = caller.call("open_session", language="python")
    assert answer.result["isError"] and answer.outcome == "not-run", answer.body
    assert all(value(caller.cell(handle, "6 * 7")) == "42" for handle in opened)


def lose(nodes, node, how):
    """Loses a node. Returns how long the balancer has gone on using it."""
    began = time.monotonic()
    getattr(node, how)()
    wait_until(lambda: nodes.haproxy.states()[node.name].startswith("DOWN"), 10, "it is out of the rotation")
    return time.monotonic() - began


@pytest.mark.parametrize("how", ["kill", "unplug"])
def test_a_lost_node_costs_no_program_and_its_sessions_say_that_it_is_lost(nodes, how):
    node = nodes.nodes[1]
    with client(nodes) as caller:
        found = sessions(nodes, caller)
        e2b = E2b(nodes)
        sandboxes = one_on_each(nodes, e2b.create, e2b.kill)
        answers = []

        def cell():
            with client(nodes) as other:
                answers.append(other.cell(found[node.name], SLOW_COUNT))

        with load(nodes, code=BRIEF) as calls, counted(nodes, [handle for name, handle in found.items() if name != node.name]):
            wait_until(lambda: calls.done() > 50, 30, "calls before it")
            during = threading.Thread(target=cell)
            during.start()
            time.sleep(0.3)
            out = lose(nodes, node, how)
            # A cell that ran, and one that comes later.
            during.join()
            is_gone(answers[0], node.name)
            is_gone(caller.cell(found[node.name], "1"), node.name)
            # The key does not bring it back, and its node may have run it.
            answer = caller.cell(found[node.name], "1", {"idempotency_key": f"lost by {how}"})
            is_gone(answer, node.name)
            assert answer.outcome == "unknown", answer.headers
            text, answer = e2b.execute(*sandboxes[node.name], "1")
            assert text is None and answer.status == 502 and node.name in answer.json["message"], answer.body
            before = calls.done()
            wait_until(lambda: calls.done() > before + 100, 30, "calls after it")
        assert out < OUT_WITHIN_S and calls.slowest() < SLOWEST_S, (out, calls.slowest())
        if how == "kill":
            node.start()
            nodes.wait_until_all_serve()
            # It is another server with the same name.
            is_gone(caller.cell(found[node.name], "1"), node.name)
        else:
            node.plug()
            nodes.wait_until_all_serve()
            # The session has been there all the time.
            assert node_of(found[node.name]) == caller.cell(found[node.name], "1").node
        close(caller, found)
        for handle, _ in sandboxes.values():
            e2b.kill(handle)


def progress(running, calls):
    """A condition: since now, each session has begun another cell, and programs have ended, too."""
    cells, done = [one.cells for one in running], calls.done()
    return lambda: all(one.cells > before + 1 for one, before in zip(running, cells, strict=True)) and calls.done() > done + 12


def test_cells_whose_connections_break_run_once(nodes):
    with client(nodes) as caller:
        found = sessions(nodes, caller)
        with load(nodes, ways=["MCP", "SandboxFusion"], code=BRIEF) as calls, counted(nodes, found.values()) as running:
            for number in range(12):
                going_on = progress(running, calls)
                nodes.haproxy.cut(nodes.nodes[number % 3])
                # A call is tried a few times. On a fast machine, each of them could be cut, and on a slow one a call that takes long.
                time.sleep(0.3)
                wait_until(going_on, 30, "cells and programs after it")
        # And one of each kind that takes a while.
        for name, handle in found.items():
            caller.cell(handle, "import os; os.remove('count')")
            answers = []

            def cell(handle=handle, answers=answers):
                with client(nodes) as other:
                    answers.append(other.cell(handle, SLOW_COUNT))
                    answers.append(other.call("run_command", session=handle, command="sleep 1; echo x >> commands; wc -l < commands"))

            during = threading.Thread(target=cell)
            during.start()
            for _ in range(2):
                time.sleep(0.5)
                nodes.haproxy.cut(nodes.node(name))
                time.sleep(0.5)
            during.join()
            assert value(answers[0]) == "1" and answers[0].node == name
            assert answers[1].data["stdout"] == "1\n", answers[1].data
        close(caller, found)


def test_a_key_of_a_client_holds_through_the_balancer(nodes):
    with client(nodes) as caller:
        found = sessions(nodes, caller)
        for name, handle in found.items():
            key = {"idempotency_key": "mine"}
            first, again = [caller.cell(handle, COUNT, key) for _ in range(2)]
            assert (value(first), value(again), again.node) == ("1", "1", name)
            assert value(caller.cell(handle, COUNT)) == "2"
            # It counts in the message, too, where the balancer does not see it and adds one of its own.
            message, headers = caller.call_of("execute_code", session=handle, entrypoint_code=COUNT)
            message["params"]["_meta"] = message["params"]["_meta"] | {"isolator/idempotencyKey": "in the message"}
            first, again = [caller.ask("POST", "/mcp", message, **headers) for _ in range(2)]
            assert (value(first), value(again), again.node) == ("3", "3", name)
            # The same key with other code is a mistake.
            other = caller.cell(handle, "3", key)
            assert other.status == 422 or other.result["isError"], other.body
            # To another client it means nothing, and neither does the handle.
            stranger = Client(nodes.place, nodes.other_token)
            assert stranger.cell(handle, COUNT, key).result["isError"]
            stranger.close()
            assert value(caller.cell(handle, COUNT)) == "4"
        close(caller, found)


@pytest.mark.parametrize("place", ["header", "message"])
def test_a_key_opens_one_session_until_its_node_is_lost(nodes, place):
    with client(nodes) as caller:
        opened = {}
        for number in range(12):
            twice = [with_key(caller, f"{place} {number}", place, "open_session", language="python") for _ in range(2)]
            first, again = [answer.data["session"] for answer in twice]
            assert first == again and twice[0].node == twice[1].node == node_of(first), twice
            opened[number] = first
        # Keys are shared by the nodes.
        assert len({node_of(session) for session in opened.values()}) > 1, opened
        said = {
            with_key(caller, f"{place} program", place, "execute_code", language="python", entrypoint_code=RANDOM).data["stdout"]
            for _ in range(3)
        }
        assert len(said) == 1, said
        number, session = opened.popitem()
        node = nodes.node(node_of(session))
        lose(nodes, node, "kill")
        answer = with_key(caller, f"{place} {number}", place, "open_session", language="python")
        assert answer.node != node.name and answer.data["session"] != session, answer.data
        for number, session in opened.items():
            if node_of(session) != node.name:
                again = with_key(caller, f"{place} {number}", place, "open_session", language="python")
                assert again.data["session"] == session, "the keys of other nodes stay where they are"
        close(caller, {**opened, "other": answer.data["session"]})
        node.start()
        nodes.wait_until_all_serve()


def with_key(caller, key, place, tool, **arguments):
    """The answer to a call with a key in a header or in the message."""
    message, headers = caller.call_of(tool, **arguments)
    if place == "header":
        headers["idempotency_key"] = f'"{key}"'
    else:
        message["params"]["_meta"] = message["params"]["_meta"] | {"isolator/idempotencyKey": key}
    return caller.ask("POST", "/mcp", message, **headers)


def test_a_client_reads_why_it_is_not_served_when_no_node_is_there(tmp_path):
    with cluster(tmp_path, nodes=1) as nodes, client(nodes) as caller:
        handle = caller.open()
        (node,) = nodes.nodes
        node.kill()
        wait_until(lambda: set(nodes.haproxy.states("kept").values()) == {"DOWN"}, 10, "the balancer knows")
        for answer in (caller.run("print(1)"), caller.cell(handle, "1")):
            assert (answer.status, answer.outcome) == (503, "unknown") and "no node" in answer.json["message"], answer.body
        # Trainers try again after this status alone.
        answer = caller.ask("POST", "/run_code", {"code": "print(1)", "language": "python"})
        assert answer.status == 504 and answer.headers["retry-after"] == "1" and "no node" in answer.json["detail"]
        assert caller.ask("GET", "/readyz").status == 503
        node.start()
        nodes.wait_until_all_serve()
        assert caller.ask("GET", "/readyz").status == 200 and caller.run("print(1)").data["stdout"] == "1\n"


def test_a_session_of_a_lost_node_is_replayed_on_another_with_a_journal_in_valkey(tmp_path):
    with network() as at, valkey(tmp_path / "valkey", address=at.machine) as journals:
        kept = {"journals": journals.settings}
        with cluster(tmp_path, nodes=2, at=at, sessions=kept) as nodes, client(nodes) as caller:
            session = caller.open()
            assert [value(caller.cell(session, COUNT)) for _ in range(3)] == ["1", "2", "3"]
            (key,) = wait_until(lambda: journals.ask("KEYS", "isolator:journal:*"), 10, "a journal")
            wait_until(lambda: journals.ask("LLEN", key) >= 3, 10, "all steps are written")
            lose(nodes, nodes.node(node_of(session)), "kill")
            is_gone(caller.cell(session, "1"), node_of(session))
            answer = caller.call("open_session", language="python", replay=session)
            other = answer.data["session"]
            assert node_of(other) != node_of(session)
            assert value(caller.cell(other, COUNT)) == "4"
