"""Sessions whose kernels are forks of one template find nothing of each other, reach nothing of the template, and don't take the files
of a client for modules of the kernel."""

import hashlib
import json
import secrets
from contextlib import asynccontextmanager

import anyio
import pytest
from server import configuration
from session_calls import opened, serving

# A template takes a second, and a sandbox is that of any launcher.
TRIES = 60

pytestmark = pytest.mark.only_on("embedded")

# Whether the kernel comes from a template that has IPython: the collector does not look at what was there before a fork.
IS_FORKED = """
import gc
from IPython.core.interactiveshell import InteractiveShell as shell
not any(one is shell for one in gc.get_objects())
"""

# Leaves a text, which the code does not have in one piece, wherever a session can leave something.
LEAVES = """
import builtins, contextlib, json, linecache, logging, os, random, sys, threading, warnings
kept = {begin!r} + {end!r}
json.kept = builtins.kept = sys.intern(kept)
os.environ["KEPT"] = kept
sys.modules[kept] = json
linecache.cache[kept] = (1, None, [kept], kept)
logging.getLogger(kept).warning(kept)
warnings.warn(kept)
random.seed(1)
thread = threading.Thread(target=len, args=(kept,), name=kept)
thread.start()
thread.join()
for place in ["/workspace", "/tmp", "/dev/shm", "/var/tmp"]:
    with contextlib.suppress(OSError), open(f"{{place}}/{{kept}}", "w") as file:
        file.write(kept)
many = [kept + str(number) for number in range(100)]
print(kept)
"""

# Looks for it in all memory of its process and in what else a session can read. Only its beginning and its hash are here.
SEEKS = """
import ctypes, glob, hashlib, os
begin, length, expected = {begin!r}.encode(), {length}, {digest!r}
def is_in(content):
    at = content.find(begin)
    while at >= 0:
        if hashlib.sha256(content[at:at + length]).hexdigest() == expected:
            return True
        at = content.find(begin, at + 1)
    return False
def content_of(path):
    try:
        # A pipe would be waited for.
        with open(path, "rb") if os.path.isfile(path) else open("/dev/null", "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return b""
found, searched = [], 0
with open("/proc/self/maps") as file:
    maps = file.read().splitlines()
for line in maps:
    places, rights, _, _, _, *name = line.split()
    low, high = (int(place, 16) for place in places.split("-"))
    if rights[0] != "r" or name and name[0].startswith(("[v", "/usr", "/lib")) and rights[1] != "w":
        continue
    for at in range(low, high, 1 << 20):
        searched += 1
        # A text that lies across two pieces has others beside it that do not.
        if is_in(ctypes.string_at(at, min(1 << 20, high - at))):
            found.append(line)
for place in ["/workspace", "/tmp", "/dev/shm", "/dev/mqueue", "/var/tmp", "/run", os.path.expanduser("~")]:
    for folder, _, names in os.walk(place):
        if is_in(" ".join(names).encode("utf-8", "replace")) or any(is_in(content_of(os.path.join(folder, name))) for name in names):
            found.append(folder)
for kind in ["environ", "cmdline", "comm", "fd/*"]:
    found += [path for path in glob.glob(f"/proc/[0-9]*/{{kind}}") if is_in(content_of(path))]
found += [name for name in os.environ if is_in(os.environ[name].encode())]
found, searched > 20
"""

# Tries to reach processes that are not those of the sandbox: a fork's first parent is the template.
REACHES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
listed = {int(name) for name in os.listdir("/proc") if name.isdigit()}
reached = {os.getppid()} - listed - {0}
buffer = ctypes.create_string_buffer(8)
for pid in range(2, 40_000):
    if pid in listed:
        continue
    try:
        os.kill(pid, 18)
        # One that has begun meanwhile, or a thread.
        if not os.path.exists(f"/proc/{pid}"):
            reached.add(pid)
    except ProcessLookupError:
        pass
shared = [line for line in open("/proc/self/maps") if line.split()[1].endswith("s") and line.split()[1][1] == "w"]
parents = [open(f"/proc/{pid}/stat").read().rpartition(") ")[2].split()[1] for pid in listed if os.path.exists(f"/proc/{pid}/stat")]
reached, shared, sorted(pid for pid in parents if int(pid) not in listed | {0})
"""

DRAWS = """
import numpy, pandas, random, secrets, ssl, tempfile, uuid
[random.random(), random.Random().random(), numpy.random.random(), numpy.random.default_rng().random(), secrets.token_hex(),
 ssl.RAND_bytes(8).hex(), str(uuid.uuid4()), str(uuid.uuid1()), next(tempfile._get_candidate_names())]
"""


async def is_forked(session):
    return await session.value(IS_FORKED) == "True"


@asynccontextmanager
async def forked(tools, **arguments):
    """A session whose kernel is a fork. Each launcher makes a template when it opens its first session, which has none."""
    for _ in range(TRIES):
        async with opened(tools, **arguments) as session:
            if await is_forked(session):
                yield session
                return
        await anyio.sleep(0.5)
    raise AssertionError("no kernel came from a template")


@pytest.fixture(scope="module")
async def tools(anyio_backend, tmp_path_factory):
    folder = tmp_path_factory.mktemp("neighbours")
    async with serving(folder, configuration(folder, pool={"size": 1, "hot": 1})) as (_, tools):
        yield tools


async def test_a_session_finds_nothing_of_another_one(tools):
    begin, end = "kept-", secrets.token_hex(12)
    seeks = SEEKS.format(begin=begin, length=len(begin + end), digest=hashlib.sha256((begin + end).encode()).hexdigest())

    async def finds_nothing():
        async with forked(tools) as other:
            assert await other.value(seeks) == "([], True)"

    async with forked(tools) as session:
        await session.cell(LEAVES.format(begin=begin, end=end))
        # The search finds it where it is.
        assert await session.value(seeks) != "([], True)"
        await finds_nothing()
        await session.rewind(1)
        await finds_nothing()
    await finds_nothing()


async def test_sessions_at_the_same_time_draw_nothing_alike_even_after_an_undo(tools):
    async with forked(tools) as one, forked(tools) as other:
        drawn = [await session.value(DRAWS) for session in (one, other)]
        for session in (one, other):
            await session.rewind(1)
            drawn.append(await session.value(DRAWS))
    first, second = (set(json.loads(drawn[at].replace("'", '"')) + json.loads(drawn[at + 2].replace("'", '"'))) for at in (0, 1))
    assert not first & second, drawn


async def test_a_kernel_reaches_neither_the_template_nor_another_session(tools):
    async with forked(tools) as neighbour, forked(tools) as session:
        await neighbour.cell("x = 1")
        assert await session.value(REACHES) == "(set(), [], [])"
        assert await neighbour.value("x") == "1"
    async with forked(tools) as another:
        assert await another.value("1") == "1"


# Files of a client with the names of modules that the kernel or a program imports.
NAMES = "abc ast asyncio builtins cells channel code codeop collections colorsys contextlib decorator encodings forms functools gc inspect io"
NAMES += " IPython json kernel linecache logging matplotlib numpy os pandas pygments random re session shell signal site sitecustomize"
NAMES += " socket sqlite3 struct sys threading time tokenize traceback traitlets types usercustomize warnings weakref"


@pytest.mark.parametrize("with_template", [True, False])
async def test_files_with_the_names_of_modules_are_none_of_the_kernel(tools, tmp_path, with_template):
    trap = "import os\nopen('/tmp/taken', 'a').write(__name__ + ' ')\nvalue = 'own'\n"
    files = [{"filename": f"{name}.py", "content": trap} for name in NAMES.split()]
    files += [{"filename": f"{name}/__init__.py", "content": trap} for name in ("rich", "prompt_toolkit", "stack_data")]

    async def check(session):
        cells = ["1 + 1", "%time 1", "1 / 0", "await __import__('asyncio').sleep(0, 5)", "%whos", "!echo a", "import os; os._exit(1)", "print?"]
        for cell in cells:
            await session.answer(cell)
        assert await session.value("import os; os.path.exists('/tmp/taken')") == "False", await session.value("open('/tmp/taken').read()")
        # A module that nothing has imported is the client's own, as in a program.
        assert await session.value("import colorsys; colorsys.value") == "'own'"

    if with_template:
        async with forked(tools, files=files) as session:
            await check(session)
        return
    settings = {"languageSettings": {"python": {"preload": {"fork": False}}}, "pool": {"size": 1, "hot": 1}}
    async with serving(tmp_path, configuration(tmp_path, **settings)) as (_, others):
        async with opened(others, files=files) as session:
            assert not await is_forked(session)
            await check(session)
