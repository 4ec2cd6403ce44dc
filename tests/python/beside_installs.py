"""A program with packages: from a set, from a virtual environment that is made for it in a container, and from an image that has them.

All of it in one run on one machine, with packages from the registry that this machine's tools use. The environments are made by pip
and by uv, in containers of Docker that share the network of the host. The image is the stock image with the files of the set. Nothing
else should run on the machine.
"""

import argparse
import io
import os
import shutil
import statistics
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import anyio
import docker_engine
import engine
import package_sets
import pip
from faults import copy_images
from package_sets import Store, serving
from server import BINARY, receipt

PACKAGES = ["humanize", "rapidfuzz", "orjson", "attrs", "httpx"]
HELLO = "print('hi')"
IMPORTS = "import humanize, rapidfuzz, orjson, attrs, httpx; print('hi')"
IMAGE = "isolator-test/baked"

CALLS = 100
INSTALLS = 3
# Enough for a template to be made, and for the pool to be full again.
WARMED_UP = 40
PACE_S = 0.1
INSTALLED_WITHIN_S = 300

CERTIFICATES = "/etc/ssl/certs"

# In a container that has Python alone. `/cache` is empty, or has what was downloaded before.
MAKES = {
    "uv": "/uv venv -q v && /uv pip install -q --python v --cache-dir /cache $PACKAGES",
    "pip": (
        "PYTHONPATH=/pip python3 -m venv --without-pip v && "
        "PYTHONPATH=/pip python3 -m pip --python v/bin/python install -q --cache-dir /cache --root-user-action ignore $PACKAGES"
    ),
}


class Installs:
    """Containers in which packages are installed before the program runs."""

    def __init__(self, folder):
        self.folder = folder
        self.uv = package_sets.tools(folder)["uv"]

    def run(self, tool, cache):
        """The seconds from the command to the end of the program."""
        variables = [f"SSL_CERT_FILE={CERTIFICATES}/ca-certificates.crt", f"PIP_CERT={CERTIFICATES}/ca-certificates.crt"]
        mounts = [f"{self.uv}:/uv:ro", f"{Path(pip.__file__).parent}:/pip/pip:ro", f"{cache}:/cache"]
        mounts.append(f"{CERTIFICATES}:{CERTIFICATES}:ro")
        command = ["docker", "run", "--rm", "--network", "host", "--user", "0", "--workdir", "/tmp"]
        command += [part for variable in variables for part in ("--env", variable)]
        command += [part for mount in mounts for part in ("--volume", mount)]
        command += ["--env", f"PACKAGES={' '.join(PACKAGES)}", "--entrypoint", "sh", "isolator/python"]
        script = f"{MAKES[tool]} && v/bin/python -c \"{IMPORTS}\""
        began = time.monotonic()
        done = subprocess.run([*command, "-c", script], capture_output=True, text=True, timeout=INSTALLED_WITHIN_S)
        took = time.monotonic() - began
        assert done.returncode == 0 and done.stdout == "hi\n", done
        return took

    def measure(self):
        times = {}
        for tool in MAKES:
            cache = self.folder / f"cache-{tool}"
            for name in ("nothing downloaded", "all downloaded before"):
                for _ in range(INSTALLS):
                    if name == "nothing downloaded":
                        shutil.rmtree(cache, ignore_errors=True)
                        cache.mkdir()
                    times.setdefault(f"environment by {tool}, {name}", []).append(self.run(tool, cache))
        return times


def bake(files):
    """Makes an image that has the files of a set, where Debian has what was installed for all users."""
    (folder,) = files.glob("lib/python3*/site-packages")
    place = f"usr/local/lib/{folder.parent.name}/dist-packages"
    if engine.KIND == "embedded":
        engine.derive("isolator/python", IMAGE, "BAKED=1")
        images = Path(os.environ["XDG_DATA_HOME"]) / "isolator/images"
        root = images / engine.image_id(IMAGE).removeprefix("sha256:") / "root"
        shutil.copytree(folder, root / place, dirs_exist_ok=True)
        return
    with io.BytesIO() as context:
        with tarfile.open(fileobj=context, mode="w") as archive:
            text = f"FROM isolator/python\nCOPY files /{place}\n".encode()
            entry = tarfile.TarInfo("Dockerfile")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
            archive.add(folder, "files")
        headers = {"Content-Type": "application/x-tar"}
        docker_engine.send(docker_engine.connect(timeout=240), f"/build?t={IMAGE}", context.getvalue(), headers)


async def timed(server, code, *packages):
    """The milliseconds of a call, and its receipt."""
    await anyio.sleep(PACE_S)
    began = time.perf_counter()
    result = await server.call(code, *packages)
    took = (time.perf_counter() - began) * 1000
    assert not result.is_error and result.structured_content["stdout"] == "hi\n", result.content
    return took, receipt(result)


async def calls(server, *packages):
    """The milliseconds of the first import, of later ones, and of hello beside hello without packages."""
    times = {"first import": [(await timed(server, IMPORTS, *packages))[0]]}
    for _ in range(WARMED_UP):
        await timed(server, IMPORTS, *packages)
    for _ in range(CALLS):
        times.setdefault("hello without packages", []).append((await timed(server, HELLO))[0])
        took, told = await timed(server, HELLO, *packages)
        times.setdefault("hello", []).append(took)
        if packages:
            times.setdefault("of it, bind", []).append(told["ms"]["bind"])
        times.setdefault("import", []).append((await timed(server, IMPORTS, *packages))[0])
    return times


def table(rows):
    print(f"{engine.KIND}, {os.cpu_count()} cores; packages: {', '.join(PACKAGES)}\n")
    print("| what | median | p95 |\n|---|---|---|")
    for name, values in rows.items():
        values = sorted(values)
        print(f"| {name} | {statistics.median(values):.2f} ms | {values[min(len(values) * 95 // 100, len(values) - 1)]:.2f} ms |")


def ratios(rows):
    ours = statistics.median(rows["set: import"])
    print()
    for name, values in rows.items():
        if "environment" in name or name == "image: import":
            print(f"{name} / import from a set: {statistics.median(values) / ours:.1f}")
    print(f"hello with a set - hello without: {statistics.median(rows['set: hello']) - statistics.median(rows['set: hello without packages']):.2f} ms")


async def compare(options, folder):
    rows = {name: [value * 1000 for value in values] for name, values in Installs(folder).measure().items()}
    copied = folder / "data"
    if engine.KIND == "embedded":
        copy_images(copied)
    store = Store(copied)
    config = package_sets.config(folder, {"text": package_sets.python_set(*PACKAGES)}, languages={"python"}, **options)
    with store.used():
        began = time.monotonic()
        command = [BINARY, "--engine", engine.KIND, "--config", str(config), "packages", "build"]
        variables = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
        subprocess.run(command, check=True, capture_output=True, timeout=INSTALLED_WITHIN_S, env=variables)
        rows["set: built once"] = [(time.monotonic() - began) * 1000]
        (files,) = [path / "files" for path in store.sets()]
        bake(files)
    try:
        async with serving(folder, config, store) as server:
            await server.are("ready")
            rows |= {f"set: {name}": values for name, values in (await calls(server, "text")).items()}
        languages = {name: {"enabled": False} for name in ("javascript", "go")}
        image = {"languageSettings": languages | {"python": {"image": IMAGE}}}
        (folder / "image").mkdir()
        config = package_sets.config(folder / "image", languages={"python"}, **(options | image))
        async with serving(folder / "image", config, store) as server:
            rows |= {f"image: {name}": values for name, values in (await calls(server)).items() if "without" not in name}
    finally:
        # That of the other engine is in the folder.
        if engine.KIND == "docker":
            engine.remove_image(IMAGE)
    table(rows)
    ratios(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    # On a disk where the tools can make links.
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(compare, {"pool": {"size": 4, "hot": 2}}, Path(folder))


if __name__ == "__main__":
    main()
