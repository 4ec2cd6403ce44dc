"""Kubernetes on this machine: a control plane, and two nodes that have network and mount namespaces of their own.

All that is started ends with this process, and what it made is removed: processes, mounts, control groups, files.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from cluster import Network, _ip, wait_until  # noqa: E402

TOKEN = "cluster-of-tests"
APISERVER, ETCD, DNS, METRICS = 6443, 2379, 53, 6444
SERVICES = "10.96.0.0/16"
DOMAIN = "cluster.local"
# Parts of paths of the control groups that a node's kubelet makes.
GROUP = "isolator-test-kubernetes"

# Each kind of hierarchy that kubelet wants its root in.
HIERARCHIES = [path for path in Path("/sys/fs/cgroup").iterdir() if path.is_dir() and (path / "cgroup.procs").exists()]


class Kubernetes:
    """The cluster. `programs` is the folder of its programs."""

    def __init__(self, programs, folder, closing):
        self.programs, self.folder, self.closing = Path(programs), folder, closing
        self.network = Network()
        closing.callback(self.network.close)
        self.address = f"{self.network.prefix}1"
        self.url = f"https://{self.address}:{APISERVER}"
        self.config = folder / "kubeconfig"
        self.config.write_text(self._kubeconfig())
        self._start_control_plane()
        self.nodes = [Node(self, f"node{number}", number) for number in (1, 2)]

    def _kubeconfig(self):
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        context = {"cluster": "tests", "user": "tests", "namespace": "isolator"}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "tests", "cluster": cluster}],
                "users": [{"name": "tests", "user": {"token": TOKEN}}],
                "contexts": [{"name": "tests", "context": context}],
                "current-context": "tests",
            }
        )

    def start(self, name, *command, inside=()):
        """Starts a program that ends with this process."""
        log = self.folder / f"{name}.log"
        with log.open("a") as output:
            run = [*map(str, inside), "setpriv", "--pdeathsig", "KILL", *map(str, command)]
            process = subprocess.Popen(run, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        self.closing.callback(self.stop, process)
        return process

    @staticmethod
    def stop(process):
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start_control_plane(self):
        tokens, key = self.folder / "tokens.csv", self.folder / "accounts.key"
        tokens.write_text(f'{TOKEN},tests,tests,"system:masters"\n')
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        here = f"http://127.0.0.1:{ETCD}"
        peers = "http://127.0.0.1:2380"
        urls = ["--listen-client-urls", here, "--advertise-client-urls", here, "--listen-peer-urls", peers]
        urls += ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"]
        # What is lost with this machine need not be on its disk.
        self.start("etcd", "etcd", "--data-dir", self.folder / "etcd", "--unsafe-no-fsync", *urls)
        self.start(
            "kube-apiserver",
            self.programs / "kube-apiserver",
            f"--etcd-servers={here}",
            f"--advertise-address={self.address}",
            f"--bind-address={self.address}",
            f"--secure-port={APISERVER}",
            f"--cert-dir={self.folder}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=AlwaysAllow",
            f"--service-cluster-ip-range={SERVICES}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--enable-aggregator-routing=true",
            "--allow-privileged=false",
        )
        wait_until(lambda: self.ask("get", "--raw", "/readyz", check=False) == "ok", 90, "the API server is ready")
        self.start(
            "kube-controller-manager",
            self.programs / "kube-controller-manager",
            f"--kubeconfig={self.config}",
            f"--service-account-private-key-file={key}",
            "--leader-elect=false",
            # A node that is lost is noticed in seconds instead of minutes.
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=8s",
            "--horizontal-pod-autoscaler-sync-period=2s",
            "--horizontal-pod-autoscaler-cpu-initialization-period=5s",
            "--horizontal-pod-autoscaler-initial-readiness-delay=2s",
        )
        self.start("kube-scheduler", self.programs / "kube-scheduler", f"--kubeconfig={self.config}", "--leader-elect=false")

    def ask(self, *arguments, check=True, text=None):
        """What kubectl says."""
        command = [self.programs / "kubectl", "--kubeconfig", self.config, *map(str, arguments)]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300)
        if check and done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(map(str, arguments))}: {done.stderr}")
        return done.stdout

    def get(self, *arguments):
        return json.loads(self.ask("get", *arguments, "-o", "json"))

    def apply(self, objects):
        self.ask("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def pods(self, name="isolator"):
        """The pods with a name, by theirs."""
        return {pod["metadata"]["name"]: pod for pod in self.get("pods", "-l", f"app.kubernetes.io/name={name}")["items"]}

    def ready(self, name="isolator"):
        """The names of the pods that are ready."""

        def is_ready(pod):
            conditions = pod["status"].get("conditions", [])
            return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

        return sorted(pod for pod, found in self.pods(name).items() if is_ready(found) and "deletionTimestamp" not in found["metadata"])


class Node:
    """A node: containerd, kubelet and kube-proxy in namespaces of their own."""

    def __init__(self, cluster, name, number):
        self.cluster, self.name, self.number = cluster, name, number
        self.folder = cluster.folder / name
        self.folder.mkdir()
        self.pods = f"10.244.{number}.0/24"
        self.namespace, self.address = cluster.network.add(name, 20 + number)
        self.socket = self.folder / "containerd.sock"
        self.processes = []
        self._hold_mounts()
        for path in self._groups():
            path.mkdir(parents=True, exist_ok=True)
            self._fill_processors(path)
        cluster.closing.callback(self._remove)
        self._route()
        self._write()
        self._run("containerd", "containerd", "--config", self.folder / "containerd.toml")
        wait_until(self.socket.exists, 20, f"containerd of {name}")

    def _hold_mounts(self):
        """A mount namespace, in which kubelet has its own logs of pods."""
        command = [*self.namespace.inside, "unshare", "--mount", "--propagation", "slave", "cat"]
        self.holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        own = os.readlink("/proc/self/ns/mnt")
        wait_until(lambda: os.readlink(f"/proc/{self.holder.pid}/ns/mnt") != own, 10, "a mount namespace")
        where = f"--target={self.holder.pid}"
        self.inside = ["nsenter", where, "--net", "--mount", "--"]
        for path in ("/var/log/pods", "/var/log/containers", "/var/lib/cni", "/run/containerd", "/var/lib/kubelet"):
            own = self.folder / path.strip("/").replace("/", "-")
            own.mkdir()
            Path(path).mkdir(parents=True, exist_ok=True)
            subprocess.run([*self.inside, "mount", "--bind", own, path], check=True)

    def _groups(self):
        return [hierarchy / GROUP / self.name for hierarchy in HIERARCHIES]

    @staticmethod
    def _fill_processors(path):
        """A new group of cpuset may use no processor with version 1."""
        for folder in (path.parent, path):
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (folder / file).exists() and not (folder / file).read_text().strip():
                    (folder / file).write_text((folder.parent / file).read_text())

    def _route(self):
        """Pods of all nodes reach each other, and this machine reaches them."""
        _ip("route", "add", self.pods, "via", self.address)
        for other in range(1, 3):
            if other != self.number:
                via = f"{self.cluster.network.prefix}{20 + other}"
                _ip("route", "add", f"10.244.{other}.0/24", "via", via, inside=self.namespace.inside)
        _ip("route", "add", "default", "via", self.cluster.address, inside=self.namespace.inside)
        subprocess.run([*self.inside, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)

    def _write(self):
        network = {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "pods",
                    "isGateway": True,
                    "ipam": {"type": "host-local", "ranges": [[{"subnet": self.pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
                }
            ],
        }
        (self.folder / "cni").mkdir()
        (self.folder / "cni/pods.conflist").write_text(json.dumps(network))
        (self.folder / "resolv.conf").write_text(f"nameserver {self.cluster.address}\n")
        (self.folder / "containerd.toml").write_text(
            textwrap.dedent(f"""
                version = 2
                root = "{self.folder}/containerd-root"
                state = "/run/containerd/state"
                disabled_plugins = ["io.containerd.internal.v1.opt"]
                [grpc]
                  address = "{self.socket}"
                [plugins."io.containerd.grpc.v1.cri"]
                  sandbox_image = "docker.io/library/isolator-test-pause:one"
                  # Root of this machine may lack the right to go below its own score.
                  restrict_oom_score_adj = true
                  [plugins."io.containerd.grpc.v1.cri".cni]
                    bin_dir = "/usr/lib/cni"
                    conf_dir = "{self.folder}/cni"
            """)
        )
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{GROUP}/{self.name}",
            "clusterDNS": [self.cluster.address],
            "clusterDomain": DOMAIN,
            "resolvConf": str(self.folder / "resolv.conf"),
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 5,
            "syncFrequency": "1s",
            "port": 10250,
            "healthzPort": 0,
        }
        (self.folder / "kubelet.json").write_text(json.dumps(kubelet))
        proxy = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.cluster.config)},
            "hostnameOverride": self.name,
            "mode": "iptables",
            "clusterCIDR": "10.244.0.0/16",
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "5s"},
        }
        (self.folder / "proxy.json").write_text(json.dumps(proxy))

    def _run(self, program, *command):
        self.processes.append(self.cluster.start(f"{self.name}-{program}", *command, inside=self.inside))

    def start(self):
        """Starts what makes it a node of the cluster."""
        programs = self.cluster.programs
        self._run(
            "kubelet",
            programs / "kubelet",
            f"--config={self.folder}/kubelet.json",
            f"--kubeconfig={self.cluster.config}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{self.socket}",
        )
        self._run("kube-proxy", programs / "kube-proxy", f"--config={self.folder}/proxy.json")

    def ctr(self, *arguments, namespace="k8s.io"):
        command = [*self.inside, "ctr", "--address", self.socket, "--namespace", namespace, *arguments]
        return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout

    def lose(self):
        """Unplugs it and ends its kubelet, as a machine without power: nothing on it says goodbye."""
        self.cluster.network.plug(self.name, False)

    def _remove(self):
        for process in reversed(self.processes[1:]):
            self.cluster.stop(process)
        deadline = time.monotonic() + 60
        while (pids := self._pids()) and time.monotonic() < deadline:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
        self._end_shims()
        if self.processes:
            self.cluster.stop(self.processes[0])
        self.holder.stdin.close()
        self.holder.wait()
        for path in self._groups():
            for group in sorted((found for found in path.rglob("*") if found.is_dir()), reverse=True):
                with suppress(OSError):
                    group.rmdir()
            for group in (path, path.parent):
                with suppress(OSError):
                    group.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _pids(self):
        """The processes of its pods."""
        found = set()
        for path in self._groups():
            for file in path.rglob("cgroup.procs"):
                with suppress(OSError):
                    found.update(map(int, file.read_text().split()))
        return found

    def _end_shims(self):
        """Ends what containerd leaves behind, which is in the mount namespace of the node."""
        own = os.readlink(f"/proc/{self.holder.pid}/ns/mnt")
        daemons = {process.pid for process in self.processes} | {self.holder.pid}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in daemons:
                with suppress(OSError):
                    if os.readlink(entry / "ns/mnt") == own and "containerd-shim" in (entry / "cmdline").read_text():
                        os.kill(int(entry.name), signal.SIGKILL)
