"""Well-known packages, each imported and used as its own documentation shows, from the registry that this machine's tools use.

One set has all packages of Python and one all of npm. Programs run one after the other in sandboxes, on the engine in
ISOLATOR_TEST_ENGINE. What a program prints is held against what it has to print, where there is only one right answer.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio
import engine
import package_sets
from package_sets import Store, serving
from packages_programs_node import NODE
from packages_programs_python import PYTHON
from server import BINARY, receipt

# Thirty packages come over a network.
BUILT_WITHIN_S = 900
TIMEOUT = "60s"
# Some want more than a program has by default.
MEMORY_MB = 512


def build(config, folder):
    """Builds both sets with the whole environment of this process, which says where packages come from."""
    began = time.monotonic()
    command = [BINARY, "--engine", engine.KIND, "--config", str(config), "packages"]
    variables = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
    subprocess.run([*command, "build"], check=True, timeout=BUILT_WITHIN_S, env=variables)
    print(f"built in {time.monotonic() - began:.1f} s\n", flush=True)
    subprocess.run([*command, "ls"], check=True, env=variables)


async def run_all(server, language, programs, chosen):
    """Runs the programs of a language. Returns how many failed."""
    print(f"\n| {language} on {engine.KIND} | result | bind, ms | whole call, ms |\n|---|---|---|---|")
    failed = 0
    for name, (code, expected) in programs.items():
        if chosen and name not in chosen:
            continue
        began = time.monotonic()
        file = {"entrypoint_filename": "main.mjs"} if language == "javascript" and "import " in code else {}
        result = await server.call(code, language, language=language, timeout=TIMEOUT, memory_mb=MEMORY_MB, **file)
        took = (time.monotonic() - began) * 1000
        data = result.structured_content or {"status": result.content[0].text}
        printed = data.get("stdout", "").strip()
        is_right = not result.is_error and (printed == expected if expected is not None else printed != "")
        failed += not is_right
        told = "works" if is_right else f"{data['status']}: {(printed + ' ' + data.get('stderr', ''))[-300:]!r}"
        bind = receipt(result)["ms"]["bind"] if result.meta and "isolator/receipt" in result.meta else float("nan")
        print(f"| {name} | {told} | {bind:.2f} | {took:.0f} |", flush=True)
    return failed


async def main_of(options):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        store = Store(folder / "data")
        sets = {"python": package_sets.python_set(*PYTHON), "javascript": package_sets.node_set(*NODE)}
        config = package_sets.config(folder, sets, limits={"maxMemoryMB": 2048})
        with store.used():
            build(config, folder)
        async with serving(folder, config, store) as server:
            failed = 0
            for language, programs in [("python", PYTHON), ("javascript", NODE)]:
                await server.are("ready", language=language)
                failed += await run_all(server, language, programs, options.only)
            if failed:
                print(server.said()[-5000:])
    print(f"\n{failed} failed")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", metavar="PACKAGE", help="run only the programs of these packages")
    sys.exit(anyio.run(main_of, parser.parse_args()) != 0)


if __name__ == "__main__":
    main()
