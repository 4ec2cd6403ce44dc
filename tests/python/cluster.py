"""Several nodes and a load balancer on this machine: each has a network namespace of its own, and all are on one switch.

A namespace lives as long as the process that holds it, and that ends with the process of the tests. So nothing is left, however a
test ends.
"""

import ipaddress
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import engine
from faults import configuration
from server import BINARY, ROOT, command, environment, instances, tokens

HAPROXY_CONFIG = ROOT / "contrib/haproxy/haproxy.cfg"

# The network of the addresses in `haproxy.cfg`, and the last parts of the addresses: this machine, the balancer and the first node.
WRITTEN_NETWORK = "192.0.2."
MACHINE, BALANCER, FIRST_NODE = 1, 10, 11
PORT, AGENT_PORT = 8000, 8001

# The lists of nodes in `haproxy.cfg`.
BACKENDS = ("programs", "kept", "keyed")

# How long a node may take until it is ready, or to end.
READY_WITHIN_S = 60
ENDED_WITHIN_S = 40

# The domain of E2B's sandboxes.
DOMAIN = "sandbox.example"

# Small nodes: each runs four programs at a time and has eight sessions.
SLOTS, SESSIONS = 4, 8
SETTINGS = {
    "pool": {"size": 2, "hot": 2},
    "requests": {"maxRunning": SLOTS, "maxRunningPerClient": SLOTS, "maxQueue": 64},
    "sessions": {"max": SESSIONS, "maxPerClient": SESSIONS},
    "apis": {"sandboxFusion": {}, "piston": {}, "e2b": {"domain": DOMAIN}},
}


def wait_until(condition, seconds, subject):
    """Waits for a condition, without an event loop."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {subject}"
        time.sleep(0.02)
    return found


def _ip(*arguments, inside=()):
    subprocess.run([*inside, "ip", *map(str, arguments)], check=True, capture_output=True, text=True)


class Namespace:
    """A network namespace with an interface on the switch."""

    def __init__(self):
        # Its standard input closes with this process.
        command = ["unshare", "--net", "cat"]
        self.holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.path = f"/proc/{self.holder.pid}/ns/net"
        own = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(self.path) != own, 10, "a network namespace")
        # `ip netns exec` would hide the control groups.
        self.inside = ["nsenter", f"--net={self.path}", "--"]
        _ip("link", "set", "lo", "up", inside=self.inside)

    def close(self):
        self.holder.stdin.close()
        self.holder.wait()


class Network:
    """The switch, which is in a namespace, too, and this machine's interface on it."""

    def __init__(self):
        self.switch = Namespace()
        self.members = []
        _ip("link", "add", "switch", "type", "bridge", inside=self.switch.inside)
        _ip("link", "set", "switch", "up", inside=self.switch.inside)
        self.prefix = _free_network()
        self.machine = f"{self.prefix}{MACHINE}"
        name = f"iso{self.switch.holder.pid}"
        self._connect(name, ())
        _ip("address", "add", f"{self.machine}/24", "dev", name)
        _ip("link", "set", name, "up")

    def _connect(self, name, inside):
        """A cable from the switch. Its end gets a name, and is moved to a namespace that a command enters."""
        pid = inside[1].split("/")[2] if inside else os.getpid()
        end = f"to-{name}"
        _ip("link", "add", end, "type", "veth", "peer", "name", name, "netns", pid, inside=self.switch.inside)
        _ip("link", "set", end, "master", "switch", "up", inside=self.switch.inside)

    def add(self, name, number):
        """A namespace on the switch, and its address."""
        member = Namespace()
        self.members.append(member)
        self._connect(name, member.inside)
        _ip("address", "add", f"{self.prefix}{number}/24", "dev", name, inside=member.inside)
        _ip("link", "set", name, "up", inside=member.inside)
        return member, f"{self.prefix}{number}"

    def plug(self, name, is_in):
        """Plugs the cable of a member in, or unplugs it."""
        _ip("link", "set", f"to-{name}", "up" if is_in else "down", inside=self.switch.inside)

    def close(self):
        for member in [*self.members, self.switch]:
            member.close()


def _free_network():
    """The beginning of the addresses of a network that this machine does not use."""
    used = subprocess.run(["ip", "-4", "-json", "address"], check=True, capture_output=True, text=True).stdout
    used = [
        ipaddress.ip_network(f"{address['local']}/{address['prefixlen']}", strict=False)
        for link in json.loads(used)
        for address in link["addr_info"]
    ]
    while True:
        prefix = f"10.{random.randrange(64, 192)}.{random.randrange(256)}."
        network = ipaddress.ip_network(f"{prefix}0/24")
        if not any(network.overlaps(other) for other in used):
            return prefix


class Node:
    """A node: a server in a namespace. It can be started again after its end."""

    def __init__(self, cluster, number, settings):
        self.name = f"n{number}"
        self.cluster = cluster
        self.namespace, self.address = cluster.network.add(self.name, FIRST_NODE + number - 1)
        self.url = f"http://{self.address}:{PORT}"
        self.place = (self.address, PORT)
        self.folder = cluster.folder / self.name
        self.folder.mkdir()
        hosts = [self.address, cluster.address]
        own = {
            "node": {"name": self.name, "agentCheck": f"{self.address}:{AGENT_PORT}"},
            "http": {
                "tokens": str(cluster.tokens),
                "allowedHosts": hosts,
                "maxConnectionsPerAddress": 1024,
                "drainNotice": "1s",
            },
            # In its own namespace.
            "admin": {"address": "127.0.0.1:9464"},
        }
        self.config = configuration(self.folder, **_merged(_merged(SETTINGS, own), settings))
        self.log = self.folder / "log"
        self.process = None
        self.instance = None

    def start(self):
        """Starts it. It may not be ready yet."""
        before = instances(self.folder)
        at = self.log.stat().st_size if self.log.exists() else 0
        run = [*self.namespace.inside, *command(self.config), "--http", f"{self.address}:{PORT}"]
        # If the tests are killed, it ends, too.
        run = ["setpriv", "--pdeathsig", "TERM", *run]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                run, env=environment(self.folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )
        wait_until(lambda: self._listens(at), READY_WITHIN_S, f"{self.name} listens; {self.log}")
        (self.instance,) = instances(self.folder) - before
        return self

    def _listens(self, at):
        assert self.process.poll() is None, self.log.read_text()[at:]
        return "url=" in self.log.read_text()[at:]

    def is_ready(self):
        return _status(self.place, "/readyz") == 200

    def signal(self, number):
        # Both commands before it have become it.
        self.process.send_signal(number)

    def wait(self):
        """Waits for its end. Returns its exit code."""
        code = self.process.wait(ENDED_WITHIN_S)
        self.process = None
        return code

    def stop(self):
        """Stops it as an operator does, and checks that nothing is left."""
        self.signal(signal.SIGTERM)
        assert self.wait() == 0, self.log.read_text()[-2000:]
        assert engine.left(self.instance, self.folder) == []

    def kill(self):
        self.signal(signal.SIGKILL)
        self.wait()

    def restart(self):
        self.stop()
        self.start()
        self.wait_until_ready()

    def wait_until_ready(self):
        wait_until(self.is_ready, READY_WITHIN_S, f"{self.name} is ready; {self.log}")

    def unplug(self):
        self.cluster.network.plug(self.name, False)

    def plug(self):
        self.cluster.network.plug(self.name, True)

    def drain(self, *arguments):
        """`isolator drain`, as an operator runs it on the node."""
        run = [*self.namespace.inside, BINARY, "--config", str(self.config), "drain", *arguments]
        return subprocess.run(run, env=environment(self.folder), capture_output=True, text=True, timeout=60)

    def close(self):
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(ENDED_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.kill()


class Haproxy:
    """HAProxy with the configuration of `contrib/`, in which only addresses and the folder of its socket are others."""

    def __init__(self, cluster, nodes):
        self.namespace, self.address = cluster.namespace, cluster.address
        self.config = cluster.folder / "haproxy.cfg"
        self.socket = cluster.folder / "admin.sock"
        text = HAPROXY_CONFIG.read_text().replace(WRITTEN_NETWORK, cluster.network.prefix)
        text = text.replace("/run/haproxy", str(cluster.folder))
        # Fewer nodes than the file has.
        text = re.sub(r"^ +server n(\d) .*\n", lambda line: line[0] if int(line[1]) <= nodes else "", text, flags=re.MULTILINE)
        self.config.write_text(text)
        self.log = cluster.folder / "haproxy.log"
        run = ["setpriv", "--pdeathsig", "TERM", *self.namespace.inside, "haproxy", "-W", "-f", self.config]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(run, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ask(self, command):
        """The answer to a command on its socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(self.socket))
            connection.sendall(command.encode() + b"\n")
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        return answer.decode()

    def servers(self, backend):
        """The fields of each server of a backend, by its name."""
        head, *lines = self.ask("show stat").removeprefix("# ").splitlines()
        rows = [dict(zip(head.split(","), line.split(","), strict=False)) for line in lines]
        return {row["svname"]: row for row in rows if row.get("pxname") == backend and row["svname"] != "BACKEND"}

    def states(self, backend="programs"):
        """Whether each server is used, by its name."""
        return {name: row["status"] for name, row in self.servers(backend).items()}

    def reload(self):
        """Starts another worker with the same configuration, and waits until it serves."""
        before = self._worker()
        self.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: self._worker() not in (before, None), READY_WITHIN_S, f"another worker; {self.log}")

    def _worker(self):
        """The process that answers."""
        try:
            return re.search(r"^Pid: (\d+)", self.ask("show info"), re.MULTILINE)[1]
        except (OSError, TypeError):
            return None

    def cut(self, node):
        """Breaks all connections to a node."""
        subprocess.run([*self.namespace.inside, "ss", "-K", "dst", node.address], check=True, capture_output=True)

    def close(self):
        self.process.terminate()
        self.process.wait(ENDED_WITHIN_S)


class Cluster:
    """Nodes behind a balancer, at an address that this machine reaches."""

    def __init__(self, folder, closing, nodes, network, settings):
        self.folder = folder
        self.network = network
        self.namespace, self.address = self.network.add("balancer", BALANCER)
        self.place = (self.address, PORT)
        self.url = f"http://{self.address}:{PORT}"
        self.tokens = folder / "tokens"
        lines, (self.token, self.other_token) = tokens("agent", "trainer")
        made = subprocess.run([BINARY, "token", "--e2b", "e2b"], capture_output=True, text=True, check=True)
        self.e2b_key = re.search(r"e2b_[0-9a-f]{8,}", made.stderr)[0]
        self.tokens.write_text("".join(lines) + made.stdout)
        self.nodes = []
        for number in range(1, nodes + 1):
            node = Node(self, number, settings)
            closing.callback(node.close)
            self.nodes.append(node.start())
        for node in self.nodes:
            node.wait_until_ready()
        self.haproxy = Haproxy(self, nodes)
        closing.callback(self.haproxy.close)
        self.wait_until_all_serve()

    def node(self, name):
        return next(node for node in self.nodes if node.name == name)

    def wait_until_all_serve(self):
        """Waits until the balancer uses all nodes."""

        def check():
            try:
                states = [state for backend in BACKENDS for state in self.haproxy.states(backend).values()]
            except OSError:
                return False
            return set(states) == {"UP"}

        wait_until(check, READY_WITHIN_S, f"all nodes serve; {self.haproxy.log}")


@contextmanager
def network():
    """A network, on which other servers can be, too."""
    made = Network()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def cluster(folder, nodes=3, at=None, **settings):
    """Nodes that have these settings in addition to the small ones, and HAProxy, on a network."""
    with ExitStack() as closing:
        at = at or closing.enter_context(network())
        yield Cluster(folder, closing, nodes, at, settings)


def _merged(base, changes):
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return changes
    return base | {key: _merged(base.get(key), value) for key, value in changes.items()}


def _status(place, path):
    """The status of an answer to GET, or none."""
    try:
        with socket.create_connection(place, timeout=2) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\nhost: {place[0]}\r\n\r\n".encode())
            return int(connection.recv(4096).split()[1])
    except (OSError, IndexError):
        return None
