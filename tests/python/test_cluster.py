"""Three nodes behind HAProxy, as `contrib/haproxy` configures it: which node a call reaches, and what it costs."""

import time

import httpx2 as httpx
import pytest
from beside_nodes import overhead, scaling
from by_hand import request
from cluster import cluster
from cluster_clients import BOTH, E2b, client
from mcp import Client as McpClient
from mcp.client.streamable_http import streamable_http_client

pytestmark = [pytest.mark.any_engine, pytest.mark.alone]

# A cell that counts how often it runs.
COUNT = "with open('count', 'a') as file: _ = file.write('x')\nlen(open('count').read())"
SLOW_COUNT = f"import time; time.sleep(1)\n{COUNT}"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Three nodes and HAProxy, for all tests."""
    with cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def all_serve(request):
    """Whatever a test does to the nodes, all of them serve when the next one begins."""
    if "nodes" in request.fixturenames:
        request.getfixturevalue("nodes").wait_until_all_serve()


def node_of(handle):
    return handle.rpartition("-")[0]


def one_on_each(nodes, make, drop):
    """Something on each node, by the node's name."""
    found = {}
    while len(found) < len(nodes.nodes):
        made = make()
        handle = made if isinstance(made, str) else made[0]
        if found.setdefault(node_of(handle), made) is not made:
            drop(handle)
    return found


def sessions(nodes, caller):
    """A session on each node."""
    return one_on_each(nodes, caller.open, lambda handle: caller.call("close_session", session=handle))


def close(caller, found):
    for handle in found.values():
        caller.call("close_session", session=handle)


def value(answer):
    """The value of a cell."""
    assert not answer.result["isError"], answer.result
    return answer.data["result"]


def without_headers(caller, tool, **arguments):
    """A call of a client that says only in the body what it is about."""
    message, headers = caller.call_of(tool, **arguments)
    return caller.ask("POST", "/mcp", message, **{name: it for name, it in headers.items() if not name.startswith("mcp_param")})


def is_gone(answer, node):
    """An answer says that a session is lost with its node."""
    data = answer.data
    assert answer.result["isError"] and data["status"] == "session_gone", data
    assert f"the node {node}" in data["reason"] or f"its node is this one, {node}" in data["reason"], data
    assert "open_session" in answer.result["content"][0]["text"], answer.result


def test_a_call_reaches_the_node_of_its_handle_wherever_the_handle_is(nodes):
    with client(nodes) as caller:
        found = sessions(nodes, caller)
        for name, handle in found.items():
            for _ in range(2):
                assert caller.cell(handle, "6 * 7").node == name
                # A client that leaves out the header is refused, by the same node.
                answer = without_headers(caller, "execute_code", session=handle, entrypoint_code="6 * 7")
                assert (answer.node, answer.status) == (name, 400), answer.body
            message = request(1, "resources/read", {"uri": f"isolator://sessions/{handle}/files"})
            assert caller.ask("POST", "/mcp", message, accept=BOTH).node == name
        close(caller, found)
    # Calls without a handle are shared.
    with client(nodes) as caller:
        assert {caller.run("print(1)").node for _ in range(12)} == {"n1", "n2", "n3"}


def test_clients_of_the_older_revision_stay_with_the_node_of_their_protocol_session(nodes):
    seen = set()
    for _ in range(6):
        with client(nodes) as caller:
            name = caller.hello().node
            assert node_of(caller.protocol_session) == name
            session = caller.open()
            assert node_of(session) == name
            assert [value(caller.cell(session, COUNT)) for _ in range(3)] == ["1", "2", "3"]
            assert caller.run("print(1)").node == name
            assert caller.ask("DELETE", "/mcp", mcp_session_id=caller.protocol_session).status == 204
            seen.add(name)
    assert seen == {"n1", "n2", "n3"}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_official_clients_use_sessions_and_programs(nodes, mode):
    headers = {"Authorization": f"Bearer {nodes.token}"}
    for _ in range(3):
        place = streamable_http_client(f"{nodes.url}/mcp", http_client=httpx.AsyncClient(headers=headers, timeout=60))
        async with McpClient(place, mode=mode, read_timeout_seconds=60) as caller:
            opened = await caller.call_tool("open_session", {"language": "python"})
            session = opened.structured_content["session"]
            for number in range(1, 4):
                cell = await caller.call_tool("execute_code", {"session": session, "entrypoint_code": COUNT})
                assert cell.structured_content["result"] == str(number), cell
            for _ in range(3):
                ran = await caller.call_tool("execute_code", {"language": "python", "entrypoint_code": "print(7)"})
                assert ran.structured_content["stdout"] == "7\n"
            await caller.call_tool("close_session", {"session": session})


def test_sandboxes_of_e2b_are_found_by_path_header_host_and_token(nodes):
    e2b = E2b(nodes)
    found = one_on_each(nodes, e2b.create, e2b.kill)
    for name, (sandbox, token) in found.items():
        assert e2b.info(sandbox).node == name
        for by_host in (False, True):
            text, answer = e2b.execute(sandbox, token, "6 * 7", by_host)
            assert (text, answer.node) == ("42", name), answer.body
        assert e2b.start(sandbox, token, "echo $((6 * 7))") == b"42\n"
        path = {"e2b_sandbox_id": sandbox, "x_access_token": token}
        big = bytes(range(256)) * (20 << 12)
        wrote = e2b.client.ask("POST", "/files?path=big", big, content_type="application/octet-stream", **path)
        assert (wrote.status, wrote.node) == (200, name), wrote.body
        assert e2b.client.ask("GET", "/files?path=big", **path).body == big
        assert e2b.client.ask("GET", "/contexts", e2b_traffic_access_token=token).node == name
        killed = e2b.kill(sandbox)
        assert (killed.status, killed.node) == (204, name)


def test_a_stream_comes_in_pieces_and_ends_with_its_client(nodes):
    e2b = E2b(nodes)
    sandbox, token = e2b.create()
    code = "import time\nfor number in range(20):\n    print(number, flush=True)\n    time.sleep(0.2)"
    headers = {"e2b_sandbox_id": sandbox, "x_access_token": token}
    e2b.client.send("POST", "/execute", {"code": code}, **headers)
    answer = e2b.client.connection.getresponse()
    began = time.monotonic()
    while b'"stdout"' not in answer.readline():
        pass
    assert time.monotonic() - began < 2, "the first piece came with the last one"
    # It goes away, and its cell with it: the next one does not wait for four seconds.
    e2b.client.connection.sock.close()
    answer.close()
    again = E2b(nodes)
    began = time.monotonic()
    assert again.execute(sandbox, token, "number < 15")[0] == "True"
    assert time.monotonic() - began < 3
    assert again.kill(sandbox).status == 204


def test_large_requests_reach_their_nodes(nodes):
    with client(nodes) as caller:
        found = sessions(nodes, caller)
        for name, handle in found.items():
            answer = caller.cell(handle, f"# {'x' * 300_000}\n6 * 7")
            assert (answer.node, value(answer)) == (name, "42")
        close(caller, found)
        assert caller.run(f"x = '{'x' * 3_000_000}'\nprint(len(x))").data["stdout"] == "3000000\n"


def test_a_balancer_costs_little(tmp_path):
    with cluster(tmp_path, nodes=1) as nodes:
        direct, through = overhead(nodes, rounds=6, calls=15)
    # On a quiet machine it is 0.5 ms at most: beside_nodes.py measures it.
    assert through < direct + 2 and through < 1.5 * direct, (direct, through)


def test_nodes_add_up_as_the_simulation_says(tmp_path):
    measured, simulated, _ = scaling(tmp_path, seconds=2.5)
    for number, (found, model) in enumerate(zip(measured, simulated, strict=True), 1):
        assert found > 0.9 * number * measured[0], measured
        assert abs(found / model - 1) < 0.1, (measured, simulated)
