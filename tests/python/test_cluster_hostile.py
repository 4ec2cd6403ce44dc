"""Hostile clients and nodes of a cluster: what a client says of nodes is only compared, and a node that lies about its load costs no
other one its share."""

import itertools
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress

import pytest
from by_hand import request
from cluster import AGENT_PORT, cluster, wait_until
from cluster_clients import BOTH, E2b, client
from test_cluster import node_of, sessions, value, without_headers

pytestmark = [pytest.mark.any_engine, pytest.mark.alone]

DIGITS = "0123456789abcdef" * 2

# Handles that a client may make up.
STRANGE = [
    f"n9-{DIGITS}",
    f"programs-{DIGITS}",
    f"../n1-{DIGITS}",
    f"http://10.0.0.1:80/n1-{DIGITS}",
    f"n1.example:8000-{DIGITS}",
    f"N1-{DIGITS}",
    f"n1-{DIGITS}{DIGITS}{DIGITS}",
    f"{'n' * 10_000}-{DIGITS}",
    f"n1%00-{DIGITS}",
    f"ｎ1-{DIGITS}",
    f"n1-{DIGITS}\r\nx-evil: 1",
    "-",
]

# What a node may say of its load, and how its share may change at most: its own calls may get fewer.
LIES = [b"up 100000%\n", b"up 1%\n", b"ready up 0%\n", b"maxconn:1000000 up 9999999999999999999%\n", b"down#busy\n"]
NOISE = [b"x" * 1_000_000, b""]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.mark.parametrize("handle", STRANGE, ids=range(len(STRANGE)))
def test_a_handle_with_anything_in_it_is_refused_by_some_node(nodes, handle):
    with client(nodes) as caller:
        for ask in (caller.call, lambda tool, **arguments: without_headers(caller, tool, **arguments)):
            # What can't be in a header is only in the body.
            if ask == caller.call and not (handle.isascii() and handle.isprintable() and len(handle) < 1000):
                continue
            answer = ask("execute_code", session=handle, entrypoint_code="1")
            assert answer.node in ("n1", "n2", "n3") and answer.status in (200, 400), answer.body
            if answer.status == 200:
                assert "error" in answer.message or answer.result["isError"], answer.body
        if handle.isascii() and handle.isprintable() and 0 < len(handle) < 1000:
            answer = caller.ask("POST", "/mcp", request(1, "ping"), accept=BOTH, mcp_session_id=handle)
            assert answer.status in (400, 404), answer.body
            e2b = E2b(nodes)
            answer = e2b.client.ask("GET", "/health", e2b_sandbox_id=handle, x_access_token=DIGITS)
            assert answer.status in (400, 401, 404, 502), (answer.status, answer.body)
            e2b.client.close()
        assert caller.run("print(1)").data["stdout"] == "1\n"


def test_a_header_that_disagrees_with_the_body_is_refused(nodes):
    with client(nodes) as caller:
        found = sessions(nodes, caller)
        for one, other in itertools.permutations(found.values(), 2):
            answer = caller.cell(one, "1", {"mcp_param_session": other})
            assert answer.status == 400 and answer.node == node_of(other), answer.body
        for handle in found.values():
            assert value(caller.cell(handle, "6 * 7")) == "42"
            caller.call("close_session", session=handle)


def test_a_slow_body_without_a_token_is_cut(nodes):
    head = "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{{"
    for path in ("/mcp", f"/files HTTP/1.1\r\ne2b-sandbox-id: n1-{DIGITS}\r\nx-x:"):
        with socket.create_connection(nodes.place, timeout=10) as connection:
            began = time.monotonic()
            connection.sendall(head.format(path, nodes.address, 1000).encode())
            assert b" 408 " in connection.recv(4096).split(b"\r\n")[0]
            assert time.monotonic() - began < 3
    # The balancer refuses one that no node takes before it has come.
    with socket.create_connection(nodes.place, timeout=10) as connection:
        connection.sendall(head.format("/mcp", nodes.address, (32 << 20) + 1).encode())
        assert b" 413 " in connection.recv(4096).split(b"\r\n")[0]
    # With one that comes at once, a client reads that a token is missing.
    with client(nodes) as caller:
        caller.token = None
        assert caller.run("print(1)").status == 401


class Agent:
    """A node's report of its load, by somebody who is not the node."""

    def __init__(self, nodes, says):
        self.says, self.asked = says, 0
        self.listener = socket.create_server((nodes.network.machine, 0))
        self.connections = []
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self):
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.asked += 1
                with suppress(OSError):
                    connection.sendall(self.says)
                if self.says:
                    connection.close()
                else:
                    # It never says anything.
                    self.connections.append(connection)

    def is_heard(self):
        before = self.asked
        wait_until(lambda: self.asked > before + 2, 10, "the balancer asks the false agent")

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        for connection in [self.listener, *self.connections]:
            connection.close()


@contextmanager
def lying(nodes, says):
    """Somebody reports the load of the third node."""
    false = Agent(nodes, says)
    host, port = false.listener.getsockname()
    try:
        nodes.haproxy.ask(f"set server programs/n3 agent-addr {host} port {port}")
        false.is_heard()
        yield
    finally:
        # What an agent has said holds until it says something else.
        false.says = b"ready up 100%\n"
        false.is_heard()
        nodes.wait_until_all_serve()
        nodes.haproxy.ask(f"set server programs/n3 agent-addr {nodes.node('n3').address} port {AGENT_PORT}")
        false.close()


def shares(nodes, callers=6, calls=15):
    """How many programs each node runs, if several clients call all the time."""
    ran = Counter()

    def work():
        with client(nodes) as caller:
            for _ in range(calls):
                answer = caller.run("print(1)")
                assert answer.data["stdout"] == "1\n", answer.body
                ran[answer.node] += 1

    threads = [threading.Thread(target=work) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(ran.values()) == callers * calls, "a call failed"
    return {name: ran[name] / sum(ran.values()) for name in ("n1", "n2", "n3")}


@pytest.mark.parametrize("says", [*LIES, *NOISE], ids=range(len(LIES) + len(NOISE)))
def test_a_node_that_lies_about_its_load_takes_no_more_than_an_idle_one_and_stops_no_other(nodes, says):
    with lying(nodes, says):
        assert int(nodes.haproxy.servers("programs")["n3"]["weight"]) <= 256
        found = shares(nodes)
        # At most the share of an idle node: the others say truly that they are busy, by which they get fewer calls. If n3 could raise its
        # weight above its configured one, it would get nearly all.
        assert found["n3"] < 0.75 and min(found["n1"], found["n2"]) > 0.08, found
        # Sessions on it are not its to give up.
        assert nodes.haproxy.states("kept")["n3"] == "UP"
