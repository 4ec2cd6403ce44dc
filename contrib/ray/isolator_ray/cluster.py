"""The Isolators of a Ray cluster: an actor on each node, and which of them a task should ask first."""

import os
import random
import threading
import time

import ray
from ray.util import get_node_ip_address, list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .client import host_of, is_loopback, run_on
from .server import STOP_S, Server

NAMESPACE = "isolator"
PREFIX = "isolator-"
# How long a process believes what it knows of the nodes, and how long it waits for the actors.
KNOWN_S = 10
ANSWERED_S = 5
STARTED_S = 60
# As `host`, it stands for the address that each node has in Ray.
EVERY = "0.0.0.0"


class NodeActor:
    """Keeps the Isolator of its node alive, and tells where it is."""

    def __init__(self, options):
        self.node = ray.get_runtime_context().get_node_id()
        if options["host"] == EVERY:
            # Its state has to name an address that is on the node.
            options = options | {"host": get_node_ip_address()}
        self.server = Server(**options)

    def state(self):
        """Address, health and load of its Isolator."""
        return {"node": self.node, "ip": get_node_ip_address()} | self.server.state()

    def nothing(self):
        """For measuring how long a call of an actor takes."""

    def stop(self):
        self.server.stop()


def start(command=("isolator",), address=None, host="127.0.0.1", config=None, environment=None, within=STARTED_S):
    """Puts an actor on each node that has none, and waits until all have an Isolator. Returns their states.

    With `address`, such as `http://127.0.0.1:8000`, each finds the Isolator that runs on its own node at that address. Without it, each
    starts `command` there, with the configuration file `config`, on a free port of `host`: "0.0.0.0" is the address that each node has
    in Ray. Call it again when nodes were added.
    """
    options = {"command": list(command), "address": address, "host": host, "config": config, "environment": environment}
    actor = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=4)(NodeActor)
    for node in _alive():
        actor.options(
            name=PREFIX + node,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(options)
    until = time.monotonic() + within
    while True:
        found = states()
        missing = set(_alive()) - {state["node"] for state in found if state["healthy"]}
        if not missing:
            return found
        if time.monotonic() >= until:
            reasons = [state.get("reason") for state in found if state["node"] in missing]
            raise TimeoutError(f"no Isolator after {within} s on {len(missing)} nodes: {reasons}")
        time.sleep(0.2)


def _alive():
    """The nodes of the cluster, by their ids."""
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def states():
    """The state of each node's Isolator, as far as its actor answers."""
    nodes = _alive()
    asked = {}
    for found in list_named_actors(all_namespaces=True):
        node = found["name"].removeprefix(PREFIX)
        if found["namespace"] == NAMESPACE and found["name"] == PREFIX + node and node in nodes:
            try:
                asked[ray.get_actor(found["name"], namespace=NAMESPACE).state.remote()] = nodes[node]
            except ValueError:
                # It has ended since.
                continue
    if not asked:
        return []
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWERED_S)
    found = []
    for answer in answered:
        try:
            found.append(_checked(ray.get(answer), asked[answer]))
        except ray.exceptions.RayError:
            # Its node is lost, or it is being started again.
            continue
    return found


def _checked(state, node):
    """What the actor of a node has answered. Programs and tokens go to the address in it, so that has to be on the node."""
    state = state | {"node": node["NodeID"], "ip": node["NodeManagerAddress"]}
    host = host_of(state["address"])
    own = (node["NodeManagerAddress"], node.get("NodeManagerHostname"))
    if state["address"] and not (host and (host in own or is_loopback(host))):
        reason = f"its address {state['address']!r} is not on its node {own[0]}"
        state |= {"address": None, "healthy": False, "load": None, "reason": reason}
    return state


def stop():
    """Ends all actors, and the Isolators that they have started."""
    for found in list_named_actors(all_namespaces=True):
        if found["namespace"] == NAMESPACE and found["name"].startswith(PREFIX):
            actor = ray.get_actor(found["name"], namespace=NAMESPACE)
            ray.wait([actor.stop.remote()], timeout=STOP_S + 2 * ANSWERED_S)
            ray.kill(actor)
    _known.forget()


class _Known:
    """What this process knows of the nodes."""

    def __init__(self):
        self.asking = threading.Lock()
        self.states = []
        self.until = 0.0

    def forget(self):
        self.states, self.until = [], 0.0

    def addresses(self):
        """The addresses to ask: that of this node, and the others in a random order, those without load first."""
        known = self.states
        # One thread asks anew. The others wait for it only if they know nothing.
        if time.monotonic() >= self.until and self.asking.acquire(blocking=not known):
            try:
                if time.monotonic() >= self.until:
                    self.states = states()
                    self.until = time.monotonic() + KNOWN_S
                known = self.states
            finally:
                self.asking.release()
        own = ray.get_runtime_context().get_node_id()
        # At 127.0.0.1 there is another process on each machine.
        ip = next((state["ip"] for state in known if state["node"] == own), None)
        known = [state for state in known if state["address"]]
        known = [state for state in known if state["ip"] == ip or not is_loopback(host_of(state["address"]))]
        random.shuffle(known)
        known.sort(key=lambda state: (state["node"] != own, not state["healthy"], (state["load"] or 0) >= 1))
        return [state["address"] for state in known]


_known = _Known()


def run(code, language="python", timeout=10.0, within=None, token=None, **fields):
    """Runs a program on the nearest node that runs it, in a task, an actor or the driver. Returns its end as `Ran`.

    `token` is one of the servers' tokens; by default that in ISOLATOR_TOKEN, if there is one. The other arguments are those of
    `client.run_on`.
    """
    tries = 0

    def addresses():
        nonlocal tries
        tries += 1
        if tries > 1:
            # None of them has run it: some may be gone, and others new.
            _known.forget()
        return _known.addresses()

    token = token or os.environ.get("ISOLATOR_TOKEN")
    return run_on(addresses, code, language, timeout, within, token, **fields)
