"""A sandbox of the embedded engine shows what `inside/expected.toml` has, and nothing else, whichever way leads into it."""

import re
import tomllib
from pathlib import Path

import inside
import pytest

pytestmark = pytest.mark.only_on("embedded")

TABLE = tomllib.loads((Path(__file__).with_name("inside") / "expected.toml").read_text())

PROGRAMS = [
    "a program in a new interpreter",
    "a program in a fork of a template",
    "a program in an interpreter that waited",
    "a program with a writable root",
    "a program with a home",
    "a cell with a home",
    "a program without root",
    "a cell of a session",
    "a command of a session",
]
PROCESSES = ["process 1 of a sandbox", "a template"]

TOPICS = [
    "status",
    "settings",
    "limits",
    "mounts",
    "devices",
    "usable",
    "descriptors",
    "users",
    "process",
    "scheduling",
    "keyrings",
    "network",
    "environment",
    "others",
]

# Parts of the kernel that describe the host. A file is hidden by the device null, and a folder by an empty one.
HIDDEN = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/pressure",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/devices/virtual/thermal",
    "/sys/firmware",
    *map(str, Path("/sys/devices/system/cpu").glob("*/thermal_throttle")),
]
EMPTY = "tmpfs / ro,nosuid,nodev,noexec,relatime rw,size=4k,mode=555,uid=+0,gid=+0"
NULL = "tmpfs /null ro,nosuid,noexec,relatime rw,size=64k,mode=755,uid=+0,gid=+0"

# Those that can only be read, where the machine has them.
READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"]

# Of the status of a process only what a table has is compared: the kernel adds lines.
PARTS = ("status", "settings", "scheduling")


@pytest.fixture(scope="module")
async def seen(anyio_backend, tmp_path_factory):
    return await inside.look(tmp_path_factory.mktemp("inside"))


def version():
    """The version of the control groups that limit."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return "version_1" if any(" - cgroup " in line and "memory" in line.rsplit(",", 1)[-1] for line in mounts) else "version_2"


def expected(way, topic):
    rows = dict(TABLE[topic])
    if topic == "mounts":
        rows = {path: row for path, row in rows.items() if path not in READ_ONLY or Path(path).exists()}
        if way != "a program without root":
            rows |= TABLE[version()]["mounts"]
    if "with a home" in way:
        rows |= TABLE["a home"].get(topic, {})
    rows |= TABLE.get(way, {}).get(topic, {})
    rows = {name: row for name, row in rows.items() if row != "not there"}
    if topic == "mounts":
        rows |= {path: EMPTY if Path(path).is_dir() else rows.get("/dev/null", NULL) for path in HIDDEN if Path(path).exists()}
    return rows


def shown(view, topic):
    """The rows of a topic."""
    if topic == "limits":
        return dict(line.split("  ", 1) for line in view["limits"])
    if topic == "devices":
        return dict(line.split(" ", 1) for line in view["devices"])
    if topic == "mounts":
        # What is covered by a later mount can't be reached.
        return dict(map(mount, view["mounts"]))
    if topic == "others":
        return {
            "score": view["memory"]["oom_score_adj"],
            "settings of the kernel that can be written": view["sysctls"]["writable"],
        } | {name: view[name] for name in ("name", "folder", "umask", "writable folders", "processes")}
    return view[topic]


def mount(line):
    target, kind, root, options, _, of_system = line.split(" ")
    if kind in ("overlay", "devtmpfs"):
        # Its layers are paths of the launcher, and the size is that of the machine.
        of_system = of_system.split(",")[0]
    return target, f"{kind} {root} {options} {of_system}"


def fits(found, pattern):
    if not isinstance(pattern, str):
        return found == pattern or (isinstance(pattern, list) and len(found) == len(pattern) and all(map(fits, found, pattern)))
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), str(found), re.DOTALL) is not None


def differences(found, wanted, in_part=False):
    """Each row that is not as it should be: with what it is, and what it should be."""
    names = wanted.keys() if in_part else found.keys() | wanted.keys()
    return {
        name: (found.get(name, "nothing"), wanted.get(name, "nothing"))
        for name in names
        if name not in found or name not in wanted or not fits(found[name], wanted[name])
    }


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("way", PROGRAMS)
async def test_a_program_sees_what_the_table_has(seen, way, topic):
    found = shown(seen[way], topic)
    assert differences(found, expected(way, topic), topic in PARTS) == {}


@pytest.mark.parametrize("way", [way for way in PROGRAMS if "without root" not in way])
async def test_a_program_sees_the_limits_of_its_control_groups(seen, way):
    groups = seen[way]["control groups"]
    found = {path.removeprefix("/sys/fs/cgroup/"): value for path, value in groups["files"].items()}
    assert differences(found, TABLE[version()]["limits"], in_part=True) == {}
    # It sees its own groups only, as if there were no others.
    paths = {line.partition(":")[2] for line in groups["of the process"]}
    assert paths == {"/"}


# Files that a process may write about itself. None of them gives it rights, or names another process.
OWN_FILES = {
    "autogroup",
    "clear_refs",
    "comm",
    "coredump_filter",
    "gid_map",
    "loginuid",
    "mem",
    "oom_adj",
    "oom_score_adj",
    "projid_map",
    "sched",
    "timens_offsets",
    "timerslack_ns",
    "uid_map",
}


@pytest.mark.parametrize("way", PROGRAMS)
async def test_no_file_of_the_kernel_can_be_written(seen, way):
    writable = seen[way]["writable"]
    # A path over which null lies can be written, which does nothing.
    hidden = {path for path in HIDDEN if Path(path).is_file()}
    assert set(writable["files of the kernel"]) <= hidden
    assert set(writable["files of the process"]) <= OWN_FILES
    for path, what in seen[way]["masked"].items():
        if path in HIDDEN:
            assert what["content"] in ([], ""), path


@pytest.mark.parametrize("kind", PROCESSES)
async def test_a_process_of_the_engine_has_what_the_table_has(seen, kind):
    view = seen[kind]
    status = view["status"]
    sets = {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    found = {name: view[name] for name in ("environment", "namespaces", "descriptors", "score", "leads")} | {
        "capabilities": "none" if sets == {"0" * 16} else sets,
        "filters": status["Seccomp_filters"] if status["NoNewPrivs"] == "1" else "new privileges",
        "users": f"{status['Uid']} {status['Gid']}",
    }
    assert differences(found, TABLE[kind]) == {}
    limits = dict(line.split("  ", 1) for line in view["limits"])
    assert differences(limits, TABLE["limits"]) == {}


async def test_a_launcher_has_nothing_of_the_server(seen):
    for kind in ("the launcher that waits", "the launcher that makes sandboxes"):
        view = seen[kind]
        assert view["environment"] == [], kind
        # Among them are the groups of instances, in which it makes those of sandboxes.
        links = {link for link in view["descriptors"] if not link.startswith("/sys/fs/cgroup/")}
        assert links <= {"/dev/null", "pipe:[*]", "socket:[*]", "anon_inode:[pidfd]"}, kind
