"""`contrib/kubernetes`: its objects are those of Kubernetes, fit each other, and ask of the server what it can do. The rights that they
give a pod suffice, and without one of them the server says which."""

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from server import BINARY, ROOT, tokens

FOLDER = ROOT / "contrib/kubernetes"
OVERLAYS = ["gateway", "keda", "programs", "sessions"]
# What the user makes; docs/kubernetes.md says how.
SECRETS = {"isolator-tokens": {"tokens", "operators", "operator", "metrics", "metrics-token"}}
UNITS = {"Gi": 1 << 30, "Mi": 1 << 20}


@cache
def overlays():
    """The objects of each overlay. Building checks them against the schemas of their kinds."""
    assert sorted(path.name for path in (FOLDER / "overlays").iterdir()) == OVERLAYS
    folders = [f"contrib/kubernetes/overlays/{name}" for name in OVERLAYS]
    command = [ROOT / "scripts/node", "--file", "tests/kubernetes/build.mjs", *folders]
    subprocess.run([ROOT / "scripts/node", "--ci", ROOT / "tests/kubernetes"], check=True)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {Path(folder).name: objects for folder, objects in json.loads(done.stdout).items()}


def of_kind(objects, *kinds):
    return [found for found in objects if found["kind"] in kinds]


def node():
    """The pod of a node, and its container."""
    (found,) = of_kind(overlays()["programs"], "StatefulSet")
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def config_text():
    (found,) = [one for one in of_kind(overlays()["programs"], "ConfigMap") if "isolator_config.json" in one["data"]]
    return found["data"]["isolator_config.json"]


def isolator(*arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ISOLATOR_")}
    done = subprocess.run([BINARY, *arguments], env=environment | variables, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.any_engine
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everything_that_an_object_names_is_there(overlay):
    objects = overlays()[overlay]
    workloads = of_kind(objects, "StatefulSet", "Deployment")
    labels = {found["metadata"]["name"]: found["spec"]["template"]["metadata"]["labels"] for found in workloads}
    ports = {}
    for found in workloads:
        spec = found["spec"]["template"]["spec"]
        selector = found["spec"]["selector"]["matchLabels"]
        assert selector.items() <= labels[found["metadata"]["name"]].items()
        maps = {one["metadata"]["name"]: one["data"] for one in of_kind(objects, "ConfigMap")}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for volume in volumes.values():
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps, volume
            if "secret" in volume:
                assert volume["secret"]["secretName"] in SECRETS, volume
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            own = {port["name"] for port in container.get("ports", [])}
            ports.setdefault(found["metadata"]["name"], set()).update(own)
            for mount in container["volumeMounts"]:
                volume = volumes[mount["name"]]
                assert "subPath" not in mount or mount["subPath"] in maps[volume["configMap"]["name"]]
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = container.get(kind, {})
                where = probe.get("httpGet") or probe.get("tcpSocket")
                assert where is None or where["port"] in own, (kind, where)
    services = {found["metadata"]["name"]: found for found in of_kind(objects, "Service")}
    for service in services.values():
        selector = service["spec"]["selector"]
        if "statefulset.kubernetes.io/pod-name" in selector:
            (behind,) = ["isolator"]
            assert re.fullmatch(r"isolator-\d", selector["statefulset.kubernetes.io/pod-name"])
        else:
            (behind,) = [name for name, own in labels.items() if selector.items() <= own.items()]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports[behind]
    for found in of_kind(objects, "StatefulSet"):
        assert services[found["spec"]["serviceName"]]["spec"]["clusterIP"] == "None"
    for found in of_kind(objects, "PodDisruptionBudget", "NetworkPolicy"):
        selector = found["spec"].get("selector") or found["spec"]["podSelector"]
        assert any(selector["matchLabels"].items() <= own.items() for own in labels.values()), found
    for found in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        target = found["spec"]["scaleTargetRef"]
        assert target["name"] in labels and target["kind"] == "StatefulSet"
        # Applying the overlay again must not undo what the autoscaler has done.
        assert all("replicas" not in one["spec"] for one in of_kind(objects, "StatefulSet"))
    for found in of_kind(objects, "ServiceMonitor"):
        wanted = found["spec"]["selector"]["matchLabels"]
        (service,) = [one for one in services.values() if wanted.items() <= one["metadata"].get("labels", {}).items()]
        assert {one["port"] for one in found["spec"]["endpoints"]} <= {one["name"] for one in service["spec"]["ports"]}
        # The alerts know the job by this name.
        assert service["metadata"]["labels"][found["spec"]["jobLabel"]] == "isolator"
        for endpoint in found["spec"]["endpoints"]:
            credentials = endpoint["authorization"]["credentials"]
            assert credentials["key"] in SECRETS[credentials["name"]]
    for found in of_kind(objects, "HTTPRoute"):
        for rule in found["spec"]["rules"]:
            for backend in rule["backendRefs"]:
                assert backend["port"] in {one["port"] for one in services[backend["name"]]["spec"]["ports"]}


@pytest.mark.any_engine
def test_the_server_understands_its_configuration_and_command_lines(tmp_path):
    pod, container = node()
    config = tmp_path / "isolator_config.json"
    (secret,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert secret["secretName"] in SECRETS
    config.write_text(config_text().replace("/etc/isolator/tokens", str(tmp_path)))
    for name in ("tokens", "operators", "metrics"):
        (tmp_path / name).write_text("".join(tokens("one")[0]))
    variables = {one["name"]: "isolator-0" for one in container["env"]}
    code, said = isolator("--config", str(config), "config", "check", **variables)
    assert code == 0, said
    for command in (["isolator", *container["args"]], container["lifecycle"]["preStop"]["exec"]["command"]):
        assert command[0] == "isolator"
        code, said = isolator(*command[1:], "--help")
        assert code == 0, (command, said)
    described = (FOLDER / "Dockerfile").read_text()
    for name, value in re.findall(r"(ISOLATOR_\w+)=(\S+)", described):
        code, said = isolator("--config", str(config), "config", "check", **{name: value})
        assert code == 0, said
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    written = json.loads(config_text())
    drains = container["lifecycle"]["preStop"]["exec"]["command"]
    for path in (written["http"]["tokens"], written["admin"]["tokens"], written["admin"]["metricsTokens"], drains[drains.index("--token-file") + 1]):
        assert str(Path(path).parent) in mounts and Path(path).name in SECRETS[secret["secretName"]]
    assert drains[-1] == str(next(port["containerPort"] for port in container["ports"] if port["name"] == "admin"))
    assert container["args"][1] in mounts
    assert re.search(r"XDG_STATE_HOME=(\S+)", described)[1] in mounts
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listens = dict(zip(container["args"][2:], container["args"][3:], strict=False))
    assert listens["--http"].endswith(f":{ports['http']}") and listens["--admin"].endswith(f":{ports['admin']}")
    assert written["node"]["agentCheck"].endswith(f":{ports['agent']}")


@pytest.mark.any_engine
def test_a_pod_has_the_memory_and_the_time_that_its_configuration_takes():
    pod, container = node()
    written = json.loads(config_text())
    programs = written["requests"]["maxRunning"] * written["defaultMemoryMB"]
    waiting = len(written["languageSettings"]) * written["pool"]["size"] * 64
    needed = programs + written["sessions"]["memoryMB"] + waiting + 512
    number, unit = re.fullmatch(r"(\d+)(\w+)", container["resources"]["limits"]["memory"]).groups()
    assert int(number) * UNITS[unit] >= needed << 20
    assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]
    assert float(container["resources"]["requests"]["cpu"]) >= written["requests"]["maxRunning"] * written["defaultCpus"]
    seconds = sum(int(written["http"][key].removesuffix("s")) for key in ("drainNotice", "drain"))
    (waits,) = [it for it in container["lifecycle"]["preStop"]["exec"]["command"] if it.startswith("--wait")]
    seconds += int(re.fullmatch(r"--wait=(\d+)s", waits)[1])
    assert pod["terminationGracePeriodSeconds"] >= seconds + 15


@pytest.mark.any_engine
def test_haproxy_takes_the_configuration_that_a_balancer_writes(tmp_path):
    script = FOLDER / "components/haproxy/kubernetes.sh"
    written = ROOT / "contrib/haproxy/haproxy.cfg"
    variables = os.environ | {"NODES": "3", "SERVICE": "nodes.example"}
    subprocess.run(["sh", script, written, tmp_path], env=variables, check=True)
    config, names = tmp_path / "haproxy.cfg", tmp_path / "names.lua"
    text = config.read_text()
    # With an address, or HAProxy ignores tcp-ut. The names come afterwards.
    servers = Counter(re.findall(r"^    server (\S+) 192\.0\.2\.1:8000 tcp-ut 1500 ", text, re.MULTILINE))
    lists = len(re.findall(r"^    server n1 ", written.read_text(), re.MULTILINE))
    assert servers == {f"isolator-{number}": lists for number in range(3)} and lists > 1
    assert ".nodes.example" in names.read_text()
    # All else is as in contrib/haproxy.
    assert "server n" not in text
    for file in (config, names):
        file.write_text(file.read_text().replace("/run/haproxy", str(tmp_path)))
    checked = subprocess.run(["haproxy", "-c", "-f", config], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.any_engine
def test_the_alerts_are_rules_for_prometheus_operator(tmp_path):
    head = (FOLDER / "components/monitoring/alerts-head.yaml").read_text()
    alerts = (ROOT / "contrib/prometheus/isolator-alerts.yml").read_text()
    (tmp_path / "rules.yaml").write_text(head + "".join(f"  {line}" for line in alerts.splitlines(keepends=True)))
    kustomization = "kind: Kustomization\nresources: [rules.yaml]\n"
    (tmp_path / "kustomization.yaml").write_text(kustomization)
    command = [ROOT / "scripts/node", "--file", "tests/kubernetes/build.mjs", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    ((rules,),) = json.loads(done.stdout).values()
    assert len(rules["spec"]["groups"][0]["rules"]) == alerts.count("- alert: ")


@pytest.mark.any_engine
def test_a_wrong_key_and_a_name_that_leads_nowhere_are_found(tmp_path):
    """So what the other tests say is worth something."""
    copied = shutil.copytree(FOLDER, tmp_path / "kubernetes")
    shutil.copytree(ROOT / "contrib/haproxy", tmp_path / "haproxy")
    file = copied / "base/statefulset.yaml"

    def said():
        command = [ROOT / "scripts/node", "--file", "tests/kubernetes/build.mjs", copied / "overlays/sessions"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60).stderr

    assert said() == ""
    written = file.read_text()
    for wrong, message in [
        (written.replace("periodSeconds", "periodSecond", 1), "periodSecond"),
        (written.replace("replicas: 3", "replicas: three"), "replicas must be integer"),
    ]:
        file.write_text(wrong)
        assert message in said()


RIGHTS = ["CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID", "SYS_ADMIN"]
CONTAINER_CONFIG = {
    "engine": {"kind": "embedded"},
    "images": {"policy": "never"},
    "pool": {"size": 0, "hot": 0},
    "languageSettings": {name: {"enabled": name == "python", "image": f"isolator/{name}"} for name in ("python", "javascript", "go")},
}


@pytest.fixture(scope="module")
def in_a_pod(tmp_path_factory):
    """Runs the server's binary in a container with the rights that the manifest gives a pod, or with others."""
    _, container = node()
    context = container["securityContext"]
    assert context["capabilities"]["drop"] == ["ALL"] and not context["privileged"]
    assert context["seccompProfile"]["type"] == "Unconfined"
    folder = tmp_path_factory.mktemp("pod")
    (folder / "config.json").write_text(json.dumps(CONTAINER_CONFIG))
    (folder / "greedy.py").write_text("held = [bytearray(b'x' * (1 << 20)) for _ in range(400)]\nprint('had it')\n")
    (folder / "plain.py").write_text("print(6 * 7)\n")
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "isolator"

    def run(*arguments, without=None, filtered=False, options=()):
        command = ["docker", "run", "--rm", "--network", "none", "--user", "0", "--read-only", "--entrypoint", "/isolator"]
        command += ["--cap-drop", "ALL"]
        for name in context["capabilities"]["add"]:
            command += [] if name == without else ["--cap-add", name]
        command += [] if filtered else ["--security-opt", "seccomp=unconfined"]
        command += ["--tmpfs", "/tmp", "--tmpfs", "/state", "--env", "XDG_STATE_HOME=/state", "--env", "XDG_DATA_HOME=/data"]
        command += ["--volume", f"{BINARY}:/isolator:ro", "--volume", f"{data}:/data/isolator:ro", "--volume", f"{folder}:/test:ro"]
        command += [*options, "isolator/python", "--config", "/test/config.json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.only_on("docker")
def test_the_rights_of_a_pod_suffice(in_a_pod):
    code, printed, said = in_a_pod("run", "/test/plain.py")
    assert (code, printed) == (0, "42\n"), said


@pytest.mark.only_on("docker")
@pytest.mark.parametrize("without", RIGHTS)
def test_a_missing_right_is_named(in_a_pod, without):
    code, _, said = in_a_pod("run", "/test/plain.py", without=without)
    assert code == 125 and f"root lacks these capabilities here: {without} (" in said, said
    assert "securityContext.capabilities.add" in said


@pytest.mark.only_on("docker")
def test_a_filter_that_keeps_sandboxes_from_their_root_is_named(in_a_pod):
    code, _, said = in_a_pod("run", "/test/plain.py", filtered=True)
    assert code == 125 and "refuses pivot_root" in said and "seccompProfile" in said, said


@pytest.mark.only_on("docker")
def test_a_sandbox_does_not_get_more_memory_than_its_pod(in_a_pod):
    more = ["--env", "ISOLATOR_DEFAULT_MEMORY_MB=1024"]
    code, printed, said = in_a_pod("run", "/test/greedy.py", options=more)
    assert (code, printed) == (0, "had it\n"), said
    code, printed, said = in_a_pod("run", "/test/greedy.py", options=[*more, "--memory", "200m"])
    assert code != 0 and "had it" not in printed, said
