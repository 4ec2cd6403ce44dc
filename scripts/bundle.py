"""Packs a binary (first argument) into a bundle in a directory (second argument). See `bundle`."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The earliest time that a zip file can contain. It is fixed, so that the same binary makes the same bundle.
BEGINNING = (1980, 1, 1, 0, 0, 0)
# The code for "made on Unix" in a zip file.
UNIX = 3
# Hosts replace this with the directory that the bundle is unpacked to.
DIRECTORY = "${__dirname}"


def main(binary: Path, target: Path) -> None:
    text = Path("packaging/manifest.json").read_text()
    manifest = json.loads(text)
    entry_point = manifest["server"]["entry_point"]
    contents = {
        # The manifest is first, so that a reader of a stream finds it first.
        "manifest.json": text.encode(),
        "LICENSE": Path("LICENSE").read_bytes(),
        "README.md": Path("README.md").read_bytes(),
        manifest["icon"]: Path("docs/icon.png").read_bytes(),
        entry_point: binary.read_bytes(),
    } | manual(binary)
    target.mkdir(parents=True, exist_ok=True)
    bundle = target / f"isolator-{manifest['version']}.mcpb"
    unfinished = bundle.with_suffix(".unfinished")
    try:
        pack(unfinished, contents, entry_point)
        check(unfinished, manifest)
        unfinished.replace(bundle)
    finally:
        unfinished.unlink(missing_ok=True)
    entry = describe(bundle, target)
    print(f"{bundle}\n{entry}", flush=True)


def manual(binary: Path) -> dict[str, bytes]:
    """The manual pages, where `man -M` looks for them."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([binary, "man", directory], check=True, capture_output=True, timeout=60)
        pages = sorted(Path(directory).iterdir())
        return {f"share/man/man1/{page.name}": page.read_bytes() for page in pages}


def pack(bundle: Path, contents: dict[str, bytes], entry_point: str) -> None:
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in contents.items():
            file = zipfile.ZipInfo(name, BEGINNING)
            file.create_system = UNIX
            mode = 0o100755 if name == entry_point else 0o100644
            file.external_attr = mode << 16
            file.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(file, content)


def check(bundle: Path, manifest: dict) -> None:
    """Unpacks the bundle as a host does, and starts the command in its manifest."""
    with tempfile.TemporaryDirectory() as directory:
        with zipfile.ZipFile(bundle) as archive:
            for file in archive.infolist():
                path = Path(archive.extract(file, directory))
                path.chmod(file.external_attr >> 16 & 0o777)
        command = manifest["server"]["mcp_config"]["command"].replace(DIRECTORY, directory)
        if Path(command) != Path(directory, manifest["server"]["entry_point"]):
            sys.exit(f"bundle: the manifest starts {command}, which is not its entry_point")
        # Hosts pass on few other variables.
        environment = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
        ran = subprocess.run(
            [command, "--version"], env=environment, capture_output=True, text=True, timeout=60
        )
        expected = f"isolator {manifest['version']}\n"
        if ran.returncode != 0 or ran.stdout != expected:
            sys.exit(f"bundle: its --version should print {expected!r}, but: {ran}")


def describe(bundle: Path, target: Path) -> Path:
    """Writes the registry entry for this bundle: server.json with the bundle's checksum."""
    server = json.loads(Path("server.json").read_text())
    for package in server["packages"]:
        if package["registryType"] == "mcpb":
            package["fileSha256"] = hashlib.sha256(bundle.read_bytes()).hexdigest()
    entry = target / "server.json"
    entry.write_text(json.dumps(server, indent=2) + "\n")
    return entry


main(Path(sys.argv[1]), Path(sys.argv[2]))
