"""Stand-ins for two parts that a cluster has: names of pods and services in DNS, and a metric of pods for the autoscaler."""

import json
import re
import socket
import socketserver
import ssl
import struct
import subprocess
import threading
import time
import urllib.request
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cluster_of_tests import DNS, DOMAIN, METRICS

METRIC = "isolator_load"
GROUP = "custom.metrics.k8s.io"


class Names:
    """A DNS server that knows the cluster's services, and the pods behind those without an address."""

    def __init__(self, cluster):
        self.cluster, self.known, self._ends = cluster, {}, threading.Event()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((cluster.address, DNS))
        for work in (self._look, self._serve):
            threading.Thread(target=work, daemon=True).start()

    def _look(self):
        while not self._ends.is_set():
            try:
                self.known = self._find()
            except (RuntimeError, subprocess.TimeoutExpired):
                pass
            time.sleep(0.3)

    def _find(self):
        known = {}
        for service in self.cluster.get("services", "-A")["items"]:
            address = service["spec"].get("clusterIP")
            if address not in (None, "None"):
                known[self._name(service)] = address
        for found in self.cluster.get("endpoints", "-A")["items"]:
            for subset in found.get("subsets", []):
                for one in [*subset.get("addresses", []), *subset.get("notReadyAddresses", [])]:
                    if "hostname" in one:
                        known[f"{one['hostname']}.{self._name(found)}"] = one["ip"]
        return known

    @staticmethod
    def _name(found):
        return f"{found['metadata']['name']}.{found['metadata']['namespace']}.svc.{DOMAIN}"

    def _serve(self):
        while not self._ends.is_set():
            try:
                asked, client = self.socket.recvfrom(4096)
                self.socket.sendto(self._answer(asked), client)
            except (OSError, IndexError, struct.error):
                continue

    def _answer(self, asked):
        labels, at = [], 12
        while length := asked[at]:
            labels.append(asked[at + 1 : at + 1 + length].decode("ascii", "replace").lower())
            at += length + 1
        question = asked[12 : at + 5]
        (kind,) = struct.unpack("!H", asked[at + 1 : at + 3])
        address = self.known.get(".".join(labels))
        is_found = address is not None and kind == 1
        flags = 0x8580 if address is not None else 0x8583
        head = asked[:2] + struct.pack("!HHHHH", flags, 1, int(is_found), 0, 0)
        record = struct.pack("!HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(address) if is_found else b""
        return head + question + record

    def close(self):
        self._ends.set()
        self.socket.close()


def load_of(pod, token):
    """The load that a pod says it has."""
    url, headers = f"http://{pod['status']['podIP']}:9464/metrics", {"authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=2) as answer:
        return float(re.search(rf"^{METRIC} (\S+)$", answer.read().decode(), re.MULTILINE)[1])


class Metrics:
    """The API of custom metrics, with the one metric of our pods."""

    def __init__(self, cluster, token):
        metrics = self
        self.cluster, self.token = cluster, token

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                body = json.dumps(metrics.answer(self.path.partition("?")[0])).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        socketserver.TCPServer.allow_reuse_address = True
        self.server = ThreadingHTTPServer((cluster.address, METRICS), Handler)
        certificate, key = cluster.folder / "metrics.pem", cluster.folder / "metrics.key"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=metrics"]
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        cluster.apply(self._objects())

    def _objects(self):
        meta = {"name": "metrics", "namespace": "isolator"}
        ports = [{"name": "https", "port": METRICS}]
        return [
            {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": ports}},
            {
                "apiVersion": "v1",
                "kind": "Endpoints",
                "metadata": meta,
                "subsets": [{"addresses": [{"ip": self.cluster.address}], "ports": ports}],
            },
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"v1beta1.{GROUP}"},
                "spec": {
                    "group": GROUP,
                    "version": "v1beta1",
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "insecureSkipTLSVerify": True,
                    "service": {"name": "metrics", "namespace": "isolator", "port": METRICS},
                },
            },
        ]

    def answer(self, path):
        version = f"{GROUP}/v1beta1"
        if not path.endswith(METRIC):
            resource = {"name": f"pods/{METRIC}", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"], "singularName": ""}
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": [resource]}
        items = []
        pods = self.cluster.pods()
        for name in self.cluster.ready():
            item = {"kind": "Pod", "namespace": "isolator", "name": name, "apiVersion": "v1"}
            try:
                value = f"{round(load_of(pods[name], self.token) * 1000)}m"
            except OSError:
                continue  # a pod that has just ended
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            items.append({"describedObject": item, "metricName": METRIC, "timestamp": now, "value": value, "selector": None})
        return {"kind": "MetricValueList", "apiVersion": version, "metadata": {}, "items": items}

    def close(self):
        self.server.shutdown()
        self.server.server_close()
