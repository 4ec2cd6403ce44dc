"""A node with and without a balancer, one node and several, and a simulation of more, in one run on one machine.

    scripts/python tests/python/beside_nodes.py [--calls 400]

Nothing else should run on the machine: all nodes, the balancer and the clients run on it, too. So programs sleep where several nodes
are compared: two cores can't show how programs scale that compute.
"""

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from cluster import SLOTS, cluster
from cluster_clients import Client
from cluster_model import rate, waits

# What programs sleep where nodes are compared.
SLEEP_S = 0.25
SLEEP = f"import time; time.sleep({SLEEP_S})"

# Clients for each slot, so that no slot waits for a call.
CLIENTS_EACH = 2


def _median(client, ask, calls):
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        ask(client)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def program(client):
    assert client.run("print(1)").data["stdout"] == "1\n"


def overhead(nodes, rounds, calls, ask=program):
    """The medians of a call in milliseconds, to the node and through the balancer, in turns."""
    clients = [Client(nodes.nodes[0].place, nodes.token), Client(nodes.place, nodes.token)]
    times = [[], []]
    for _ in range(rounds):
        for client, own in zip(clients, times, strict=True):
            own.append(_median(client, ask, calls))
    for client in clients:
        client.close()
    return [statistics.median(own) for own in times]


def throughput(nodes, seconds):
    """Programs that sleep, a second."""
    ended, ends = [], threading.Event()

    def work():
        client = Client(nodes.place, nodes.token)
        while not ends.is_set():
            assert not client.run(SLEEP).result["isError"]
            ended.append(time.monotonic())
        client.close()

    clients = [threading.Thread(target=work) for _ in range(CLIENTS_EACH * SLOTS * len(nodes.nodes))]
    for client in clients:
        client.start()
    # The first ones begin together.
    time.sleep(2 * SLEEP_S)
    began = time.monotonic()
    time.sleep(seconds)
    end = time.monotonic()
    ends.set()
    for client in clients:
        client.join()
    return sum(began < at <= end for at in ended) / (end - began)


def scaling(folder, seconds):
    """Programs a second on one, two and three nodes, and what the simulation says of them after it has seen the first."""
    found = []
    for number in (1, 2, 3):
        (folder / str(number)).mkdir()
        with cluster(folder / str(number), nodes=number) as nodes:
            found.append(throughput(nodes, seconds))
    around = SLOTS / found[0] - SLEEP_S
    model = [rate(number, SLOTS, SLEEP_S, around, CLIENTS_EACH * SLOTS * number) for number in (1, 2, 3)]
    return found, model, around


def main(calls):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        with cluster(folder, nodes=1) as nodes:
            direct, through = overhead(nodes, 8, calls // 8)
            print(f"call: {direct:.2f} ms, through HAProxy {through:.2f} ms, {through / direct:.3f} times")
            client = Client(nodes.place, nodes.token)
            session = client.open()

            def cell(client):
                assert not client.cell(session, "1 + 1").result["isError"]

            direct, through = overhead(nodes, 8, calls // 8, cell)
            print(f"cell: {direct:.2f} ms, through HAProxy {through:.2f} ms, {through / direct:.3f} times")
        found, model, around = scaling(folder, 6)
        print(f"\nprograms that sleep {SLEEP_S} s, {SLOTS} slots a node; around each {around * 1e3:.1f} ms")
        for number, (measured, simulated) in enumerate(zip(found, model, strict=True), 1):
            share = measured / found[0] / number
            print(f"{number} nodes: {measured:.1f} a second ({share:.2f} of {number} times one), simulated {simulated:.1f}")
    print("\nsimulated: the wait for a slot, median and 99th percentile, by the share of all slots in use; programs of 1 s, 8 slots")
    for number in (1, 3, 10, 30, 100):
        cells = [waits(number, 8, 1.0, around, load) for load in (0.7, 0.8, 0.9, 0.95)]
        print(f"{number:3} nodes", *(f"{median:6.2f} s {late:6.2f} s" for median, late in cells), sep=" | ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=400)
    main(parser.parse_args().calls)
