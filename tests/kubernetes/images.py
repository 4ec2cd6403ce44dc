"""The container images of the test: nodes of Isolator in two versions, HAProxy, and the process that holds a pod's namespaces."""

import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

from server import ROOT

NODES = ["isolator-node:one", "isolator-node:two"]
# By the name that the manifests have; it is the HAProxy of this machine.
BALANCER = "haproxy:2.8"
PAUSE = "isolator-test-pause:one"

HOLDS = """
#include <signal.h>
#include <unistd.h>
static void end(int number) { _exit(0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }
"""


def _run(*command, **options):
    return subprocess.run(list(map(str, command)), check=True, text=True, stdout=subprocess.PIPE, **options).stdout


def _import(folder, name, *changes):
    """Makes an image of a folder."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        with tarfile.open(file.name, "w") as tar:
            tar.add(folder, arcname=".")
        changes = [part for change in changes for part in ("--change", change)]
        _run("docker", "import", *changes, file.name, name)


def _program(path, root):
    """Copies a program and its libraries below a root."""
    libraries = re.findall(r"(/\S+) \(0x", _run("ldd", path))
    for source in [path, *libraries]:
        target = root / source.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(Path(source).read_bytes())
        target.chmod(0o755)


def make(folder):
    """Makes all images and returns an archive of them."""
    _run(ROOT / "scripts/container-node", NODES[0], "python")
    _run("docker", "build", "--quiet", "--tag", NODES[1], "-", input=f"FROM {NODES[0]}\nRUN echo two >/etc/isolator/version\n")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        _run("cc", "-static", "-O2", "-x", "c", "-o", root / "pause", "-", input=HOLDS)
        _import(root, PAUSE, 'ENTRYPOINT ["/pause"]')
    base = _run(ROOT / "scripts/container", "--base").strip()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        _program("/usr/sbin/haproxy", root)
        (root / "Dockerfile").write_text(f"FROM {base}\nCOPY usr /usr\nCOPY lib /usr/lib\nRUN ldconfig\n")
        _run("docker", "build", "--quiet", "--network", "none", "--tag", BALANCER, root)
    archive = folder / "images.tar"
    _run("docker", "save", "--output", archive, *NODES, BALANCER, PAUSE)
    return archive
