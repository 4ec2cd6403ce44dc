"""Programs that try to reach more than their set of packages, and sets that attack the sandboxes of their programs."""

import anyio
import engine
import package_sets
import pytest
from package_index import Index, Packages
from package_sets import node_set, packages, python_set, serving

# What it can see of sets: their folder, what is mounted, and modules anywhere.
LOOKS = """
import json, os
found = {"listed": [], "reached": [], "modules": []}
own = os.path.realpath(os.environ.get("PYTHONUSERBASE", "/none"))
try:
    # Where sets would be: beside its own, or wherever.
    found["listed"] = os.listdir(os.path.dirname(own) if own != "/none" else "/.isolator/packages")
except OSError:
    pass
for folder in ("/.isolator/packages", "/.isolator/packages/..", os.path.dirname(own)):
    for name in NAMES:
        path = os.path.join(folder, name)
        if os.path.exists(path) and not own.startswith(os.path.realpath(path)):
            found["reached"].append(path)
for folder, folders, files in os.walk("/"):
    if folder in ("/proc", "/sys"):
        folders.clear()
    found["modules"] += [name for name in files if name in ("hook_at_start.py", "gamma.py")]
print(json.dumps(found))
"""

# Each way of changing something; none may work, whatever the program may do in its sandbox.
WRITES = """
import ctypes, fcntl, json, os, struct
libc = ctypes.CDLL(None, use_errno=True)
import gamma
file = gamma.__file__
folder = os.path.dirname(file)
base = os.path.realpath(os.environ["PYTHONUSERBASE"])

def call(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), "refused")

def set_flags():
    with open(file) as opened:
        fcntl.ioctl(opened, 0x40086602, struct.pack("l", 0x10))

MS_REMOUNT, MS_BIND, MS_MOVE = 32, 4096, 8192
attempts = {
    "write": lambda: open(file, "a").write("x"),
    "create": lambda: open(folder + "/new.py", "w"),
    "replace": lambda: os.replace("/workspace/main.py", file),
    "unlink": lambda: os.unlink(file),
    "rename": lambda: os.rename(file, folder + "/other.py"),
    "mkdir": lambda: os.mkdir(folder + "/new"),
    "rmdir": lambda: os.rename(folder, folder + "2"),
    "link": lambda: os.link("/workspace/main.py", folder + "/linked.py"),
    "symlink": lambda: os.symlink("/etc", folder + "/linked"),
    "chmod": lambda: os.chmod(file, 0o777),
    "chown": lambda: os.chown(file, os.getuid(), os.getgid()),
    "utime": lambda: os.utime(file, (1, 1)),
    "truncate": lambda: os.truncate(file, 0),
    "xattr": lambda: os.setxattr(file, "user.x", b"x"),
    "flags": set_flags,
    "through /proc": lambda: open(f"/proc/self/fd/{os.open(file, os.O_RDONLY)}", "a"),
    "beside it": lambda: open(os.path.dirname(base) + "/new", "w"),
    "in its base": lambda: open(base + "/new", "w"),
    "remount": lambda: call(libc.mount(None, os.path.dirname(base).encode(), None, MS_REMOUNT, None)),
    "bind": lambda: call(libc.mount(b"/workspace", folder.encode(), None, MS_BIND, None)),
    "move": lambda: call(libc.mount(os.path.dirname(base).encode(), b"/tmp", None, MS_MOVE, None)),
    "unmount": lambda: call(libc.umount2(os.path.dirname(base).encode(), 2)),
}
worked = []
for name, attempt in attempts.items():
    try:
        attempt()
        worked.append(name)
    except OSError:
        pass
print(json.dumps(worked))
"""

EXECUTABLE = """
import os, stat
base = os.path.realpath(os.environ["PYTHONUSERBASE"])
odd = []
for folder, folders, files in os.walk(base):
    for name in [*folders, *files]:
        mode = os.lstat(os.path.join(folder, name)).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or mode & 0o7022:
            odd.append((name, oct(mode)))
print(odd, os.stat(base).st_uid == os.getuid())
"""


async def test_a_program_sees_its_own_set_alone(sets):
    listed = await sets.are("ready")
    names = [folder.name for folder in sets.store.sets()] + list(listed)
    looks = LOOKS.replace("NAMES", repr(names))
    # The others are in use, so they are wherever they would be seen.
    for name in ("hooks", "shadows"):
        await sets.prints("1", name)
    # On Docker it can only go where it knows the way.
    own = ["gamma.py"] if engine.KIND == "embedded" else []
    for asked, modules in [([], []), (["small"], own)]:
        found = eval(await sets.prints(looks, *asked, timeout="30s"))
        assert found["reached"] == [] and found["modules"] == modules, found
        assert engine.KIND != "docker" or not asked or found["listed"] == [], found


async def test_a_program_can_not_change_its_set(sets):
    await sets.are("ready")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in sets.store.files("gamma.py")}
    assert before
    assert await sets.prints(WRITES, "small") == "[]\n"
    assert await sets.prints(EXECUTABLE, "small") == "[] False\n"
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
    assert await sets.prints("import gamma; print(gamma.value)", "small") == "3\n"


def hostile():
    found = packages()
    found.wheel("hangs", files={"hangs.pth": "import hangs\n", "hangs.py": "import time\ntime.sleep(1000)\n"})
    found.wheel("leaves", files={"leaves.pth": "import os; print('left', flush=True); os._exit(7)\n", "leaves.py": ""})
    found.wheel("raises", files={"raises.pth": "import nothing_like_this\n", "raises.py": "x = 5\n"})
    found.wheel("eats", files={"eats.pth": "import eats\n", "eats.py": "x = []\nwhile True: x.append(bytes(1 << 20))\n"})
    customizes = "import sys\nsys.customized = getattr(sys, 'customized', ()) + (__name__,)\n"
    found.wheel("ours", files={"sitecustomize.py": customizes, "usercustomize.py": customizes, "kernel.py": "", "cells.py": ""})
    names = ("fs", "path", "module", "process")
    for name in names:
        found.module(name, files={"index.js": "module.exports = 'of the set'; process.exit(9)"})
    return found


SETS = {name: python_set(name) for name in ("hangs", "leaves", "raises", "eats", "ours")} | {
    "modules": node_set("fs", "path", "module", "process")
}

# Whatever is run at the start is the same as in a plain start.
CUSTOMIZED = """
import subprocess, sys
show = "import sys; print(getattr(sys, 'customized', ()))"
plain = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout
print(plain.strip() == repr(getattr(sys, "customized", ())), plain.strip())
"""


async def test_a_hostile_set_harms_only_programs_that_ask_for_it(tmp_path):
    with Index(hostile()) as index:
        address = {"python": index.python(), "javascript": index.javascript()}
        async with serving(tmp_path, package_sets.config(tmp_path, SETS, address)) as server:

            async def opens_no_session(name):
                opened = await server.client.call_tool("open_session", {"language": "python", "packages": [name]})
                assert opened.is_error, opened.content

            async def harms(name, status):
                data = (await server.fails("print('runs')", name, timeout="2s", memory_mb=64)).structured_content
                assert data["status"] == status and "runs" not in data["stdout"], data

            async with anyio.create_task_group() as calls:
                await server.are("ready", "hangs", within=120)
                # Opening one is given up after twenty seconds.
                calls.start_soon(opens_no_session, "hangs")
                await server.are("ready", within=120)
                for name, status in [("hangs", "timeout"), ("leaves", "error"), ("eats", "out_of_memory")]:
                    calls.start_soon(harms, name, status)
                for name in ("leaves", "eats"):
                    calls.start_soon(opens_no_session, name)
                assert (await server.fails("1", "leaves")).structured_content["exit_code"] == 7
                assert await server.prints("import raises; print(raises.x)", "raises") == "5\n"
                printed = await server.prints(CUSTOMIZED, "ours")
                assert printed.startswith("True "), printed
                await server.are("ready", language="javascript", within=120)
                code = "console.log(typeof require('fs').readFileSync, typeof require('path').join, typeof require('process').exit)"
                printed = await server.prints(code, "modules", language="javascript")
                assert printed == "function function function\n"
                # Other programs are not affected.
                assert await server.prints("import sys; print(hasattr(sys, 'customized'))") == "False\n"
