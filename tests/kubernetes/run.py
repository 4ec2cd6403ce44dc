"""Tests contrib/kubernetes in a cluster on this machine, and prints what it has measured.

    scripts/python tests/kubernetes/run.py
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "python")]

import images  # noqa: E402
from cluster import wait_until  # noqa: E402
from cluster_clients import Client, Load  # noqa: E402
from cluster_of_tests import Kubernetes  # noqa: E402
from server import ROOT, tokens  # noqa: E402
from services import Metrics, Names  # noqa: E402

OVERLAYS = ROOT / "contrib/kubernetes/overlays"

# What Kubernetes 1.20 calls what later versions have: the keys that we use are the same.
OLDER = {"policy/v1": "policy/v1beta1", "autoscaling/v2": "autoscaling/v2beta2"}

# Small nodes: all run on one machine.
SMALL = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
SETTINGS = {"requests": {"maxRunning": 4, "queueTimeout": "30s"}, "pool": {"size": 2, "hot": 2}, "sessions": {"max": 8, "memoryMB": 1024}}


def said(text):
    print(f"  {text}", flush=True)


def built(overlay):
    """The objects of an overlay, as this cluster takes them."""
    command = [ROOT / "scripts/node", "--file", ROOT / "tests/kubernetes/build.mjs", OVERLAYS / overlay]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (objects,) = json.loads(done.stdout).values()
    for found in objects:
        found["apiVersion"] = OLDER.get(found["apiVersion"], found["apiVersion"])
        if found["kind"] == "StatefulSet":
            (container,) = found["spec"]["template"]["spec"]["containers"]
            container |= {"image": images.NODES[0], "resources": SMALL}
        if found["kind"] == "ConfigMap" and "isolator_config.json" in found["data"]:
            config = json.loads(found["data"]["isolator_config.json"])
            for language in ("javascript", "go"):
                config["languageSettings"][language]["enabled"] = False
            # The tests call pods by their addresses.
            config["http"]["allowedHosts"] += [f"10.244.{node}.{last}" for node in (1, 2) for last in range(1, 100)]
            found["data"]["isolator_config.json"] = json.dumps(config | SETTINGS)
    return objects


class Run:
    def __init__(self, folder, closing):
        archive = images.make(folder)
        programs = subprocess.run([ROOT / "scripts/kubernetes"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        self.cluster = Kubernetes(programs, folder, closing)
        for node in self.cluster.nodes:
            node.ctr("images", "import", archive)
            node.start()
        archive.unlink()
        wait_until(lambda: len(self.cluster.get("nodes")["items"]) == 2, 60, "two nodes")
        closing.callback(Names(self.cluster).close)
        lines, (self.token, self.operator, self.reader) = tokens("agent", "operator", "prometheus")
        files = {"tokens": lines[0], "operators": lines[1], "metrics": lines[2]}
        self.secret = files | {"operator": self.operator, "metrics-token": self.reader}

    def place(self, pod):
        return pod["status"]["podIP"], 8000

    def to(self, place):
        return SimpleNamespace(place=place, token=self.token)

    def balancer(self):
        """A balancer on the first node, which is never lost."""
        found = self.cluster.pods("isolator-balancer")
        return next(self.place(found[name]) for name in self.cluster.ready("isolator-balancer") if found[name]["spec"]["nodeName"] == "node1")

    def overlay(self):
        objects = built("sessions")
        self.cluster.apply([found for found in objects if found["kind"] == "Namespace"])
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "isolator-tokens", "namespace": "isolator"}}
        self.cluster.apply([secret | {"stringData": self.secret}])
        began = time.monotonic()
        self.cluster.apply(objects)
        wait_until(lambda: len(self.cluster.ready()) == 3, 120, "three nodes of Isolator are ready")
        took = time.monotonic() - began
        said(f"overlay applied; three nodes ready after {took:.1f} s")
        wait_until(lambda: len(self.cluster.ready("isolator-balancer")) == 2, 120, "two balancers are ready")
        said(f"two balancers ready after {time.monotonic() - began:.1f} s")
        assert took < 15, took

    def service(self):
        """The service for clients, from a node."""
        address = self.cluster.get("service", "isolator")["spec"]["clusterIP"]
        node = self.cluster.nodes[0]
        command = [*node.inside, "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"http://{address}:8000/readyz"]
        wait_until(lambda: subprocess.run(list(map(str, command)), capture_output=True, text=True).stdout == "200", 30, "the service")

    def limits(self):
        """A program that takes more memory than its pod has is ended, and the pod's server is not."""
        name = self.cluster.ready()[0]
        pod = self.cluster.pods()[name]
        (path,) = [path for path in Path("/sys/fs/cgroup/memory").rglob(f"*{pod['metadata']['uid']}") if path.is_dir()]
        client = Client(self.place(pod), self.token)
        groups = set()
        session = client.open()
        assert client.cell(session, "1 + 1").data["status"] == "success"
        for sandbox in path.rglob("memory.limit_in_bytes"):
            if "/isolator/" in str(sandbox):
                groups.add(sandbox.parent)
        assert groups, f"no sandbox is below {path}"
        client.call("close_session", session=session)
        client.close()
        said(f"{len(groups)} groups of sandboxes are below the pod's own, whose limit is {int((path / 'memory.limit_in_bytes').read_text()) >> 20} MiB")

    def speed(self):
        def median(place):
            client = Client(place, self.token)
            times = []
            for number in range(120):
                began = time.monotonic()
                assert client.run(f"print({number})").data["stdout"] == f"{number}\n"
                times.append((time.monotonic() - began) * 1000)
            client.close()
            return statistics.median(times[20:])

        pod = self.cluster.pods()[self.cluster.ready()[0]]
        said(f"a call takes {median(self.place(pod)):.2f} ms at the pod, and {median(self.balancer()):.2f} ms through HAProxy (p50)")

    def under_load(self, name, act, clients=4, code="print(%d)"):
        load = Load(self.to(self.balancer()), clients, ["MCP"], code, old=False)
        wait_until(lambda: load.done() > 20, 60, "calls are served")
        act()
        time.sleep(2)
        load.end()
        failed = load.failed
        said(f"{name}: {len(failed)} of {load.done()} calls failed, the slowest took {max(load.times):.2f} s")
        for one in failed[:5]:
            said(f"    {one}")
        return failed

    def upgrade(self):
        began = time.monotonic()

        def act():
            self.cluster.ask("set", "image", "statefulset/isolator", f"isolator={images.NODES[1]}")
            self.cluster.ask("rollout", "status", "statefulset/isolator", "--timeout=280s")

        failed = self.under_load("rolling upgrade", act)
        said(f"    it took {time.monotonic() - began:.0f} s for three nodes")
        versions = {pod["spec"]["containers"][0]["image"] for pod in self.cluster.pods().values()}
        assert versions == {images.NODES[1]} and failed == [], failed[:5]

    def loss(self):
        lost = self.cluster.nodes[1]
        gone = [name for name, pod in self.cluster.pods().items() if pod["spec"]["nodeName"] == lost.name]
        assert gone, "no pod is on the node that is lost"
        sessions = {}
        for name in gone:
            client = Client(self.place(self.cluster.pods()[name]), self.token)
            sessions[name] = client.open()
            client.close()

        def act():
            lost.lose()
            time.sleep(10)

        failed = self.under_load(f"a node lost with {', '.join(gone)}", act)
        client = Client(self.balancer(), self.token)
        for name, session in sessions.items():
            data = client.cell(session, "1").data
            assert data["status"] == "session_gone", data
            said(f"    the session of {name}: {data.get('detail', data)}"[:160])
        client.close()
        self.cluster.network.plug(lost.name, True)
        wait_until(lambda: len(self.cluster.ready()) == 3, 120, "the node is back")
        assert failed == [], failed[:5]

    def scale(self, closing):
        closing.callback(Metrics(self.cluster, self.reader).close)
        (hpa,) = [found for found in built("gateway") if found["kind"] == "HorizontalPodAutoscaler"]
        # Not a quarter of an hour.
        hpa["spec"]["behavior"]["scaleDown"] = {"stabilizationWindowSeconds": 5, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 5}]}
        hpa["spec"]["maxReplicas"] = 3
        self.cluster.ask("scale", "statefulset/isolator", "--replicas=1")
        wait_until(lambda: len(self.cluster.ready()) == 1 and len(self.cluster.pods()) == 1, 200, "one node is left")
        self.cluster.apply([hpa])

        def act():
            began = time.monotonic()
            wait_until(lambda: len(self.cluster.ready()) == 3, 240, "three nodes by load")
            said(f"    from one node to three: {time.monotonic() - began:.0f} s after the load began")

        failed = self.under_load("scaled by the autoscaler", act, clients=12, code="import time; time.sleep(0.5); print(%d)")
        began = time.monotonic()
        wait_until(lambda: len(self.cluster.pods()) == 1, 400, "one node without load")
        said(f"    back to one node: {time.monotonic() - began:.0f} s after its end")
        assert failed == [], failed[:5]


def main():
    folder = Path(tempfile.mkdtemp(prefix="isolator-kubernetes-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    parts = sys.argv[1:] or ["service", "limits", "speed", "upgrade", "loss", "scale"]
    try:
        with ExitStack() as closing:
            run = Run(folder, closing)
            run.overlay()
            try:
                for part in parts:
                    getattr(run, part)(*([closing] if part == "scale" else []))
            except BaseException:
                # Before the cluster goes, which takes a while.
                traceback.print_exc()
                raise
    finally:
        if os.environ.get("KEEP"):
            print(f"logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print("Kubernetes: all passed")


main()
