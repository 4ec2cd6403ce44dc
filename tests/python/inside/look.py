"""Prints, as JSON, everything that a process of a sandbox can see of its own restrictions."""

import ctypes
import errno
import fcntl
import json
import os
import re
import socket
import stat
import struct

PROC = "/proc"
SELF = f"{PROC}/self/"
LIBC = ctypes.CDLL(None, use_errno=True)

# Numbers that differ from one sandbox to the next, and names of images and sandboxes.
VARYING = re.compile(r"[0-9a-f]{64}|(?<=/)[0-9a-f]{12,32}(?=[/:,]|$)|(?<=/tmp/roots/)[^/,: ]+")

# Files below these folders are opened for writing, which has no effect by itself.
KERNEL = [PROC, "/sys"]


def read(path):
    """The content of a file, or the reason why there is none."""
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace").rstrip("\n\0")
    except OSError as error:
        return errno.errorcode[error.errno]


def attempt(action, *arguments):
    try:
        result = action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done" if result is None else result


def call(name, *arguments):
    """A function of the C library, or its error."""
    ctypes.set_errno(0)
    result = getattr(LIBC, name)(*arguments)
    return errno.errorcode[ctypes.get_errno()] if result == -1 else result


def status():
    fields = dict(line.split(":", 1) for line in read(SELF + "status").splitlines())
    # What the program itself decides or what counts up is left out.
    own = ["Name", "State", "Tgid", "Pid", "PPid", "TracerPid", "FDSize", "Threads", "NSpid", "NStgid", "NSpgid", "NSsid"]
    varying = ("Vm", "Rss", "voluntary", "nonvoluntary", "Hugetlb", "x86_", "Cpus_allowed", "Mems_allowed", "SigQ", "CoreDump")
    return {name: " ".join(value.split()) for name, value in fields.items() if name not in own and not name.startswith(varying)}


def mounts():
    found = []
    for line in read(SELF + "mountinfo").splitlines():
        mount, _, system = line.partition(" - ")
        _, _, _, root, target, options, *propagation = mount.split()
        kind, source, of_system = system.split(" ", 2)
        found.append(
            " ".join(
                [
                    target,
                    kind,
                    VARYING.sub("*", root),
                    options,
                    *propagation,
                    VARYING.sub("*", source),
                    VARYING.sub("*", of_system),
                ]
            )
        )
    return found


def descriptors():
    found = {}
    # The list itself needs one.
    names = os.listdir(SELF + "fd")
    for number in sorted(map(int, names)):
        try:
            target = os.readlink(f"{SELF}fd/{number}")
        except OSError:
            continue
        flags = re.search(r"flags:\s+(\d+)", read(f"{SELF}fdinfo/{number}"))
        found[str(number)] = f"{re.sub('[0-9]+', '*', target)} {flags[1] if flags else ''}"
    return found


def devices():
    found = []
    for folder, folders, files in os.walk("/dev"):
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            info = os.lstat(path)
            line = f"{path} {stat.filemode(info.st_mode)} {info.st_uid}:{info.st_gid}"
            if stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
                line += f" {os.major(info.st_rdev)}:{os.minor(info.st_rdev)}"
            if stat.S_ISLNK(info.st_mode):
                line += f" -> {os.readlink(path)}"
            found.append(line)
    return sorted(found)


def usable():
    """The result of opening each device."""
    found = {}
    for name in ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "console", "kmsg", "mem", "fuse"]:
        for mode, flags in (("r", os.O_RDONLY), ("w", os.O_WRONLY)):
            opened = attempt(os.open, f"/dev/{name}", flags | os.O_NOCTTY | os.O_NONBLOCK)
            found[f"{name} {mode}"] = attempt(os.close, opened) if isinstance(opened, int) else opened
    return found


def limits():
    lines = read(SELF + "limits").splitlines()[1:]
    return [re.sub(r"\s{2,}", "  ", line.strip()) for line in lines]


def writable():
    """The files of the kernel that can be opened for writing, and what else can be made where."""
    opened = []
    for top in KERNEL:
        for folder, folders, files in os.walk(top):
            # Those of processes have their own files, of which a process may write some.
            if folder == PROC:
                folders[:] = [name for name in folders if not name.isdigit()]
            for name in files:
                path = os.path.join(folder, name)
                try:
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                    opened.append(path)
                except OSError:
                    pass
    of_itself = []
    for name in sorted(os.listdir(SELF)):
        path = SELF + name
        if os.path.isfile(path):
            try:
                os.close(os.open(path, os.O_WRONLY))
                of_itself.append(name)
            except OSError:
                pass
    return {"files of the kernel": sorted(opened), "files of the process": of_itself}


def folders():
    """Where a file can be made, among all folders of the root down to the second level and all mounts."""
    places = {"/"} | {line.split()[0] for line in mounts()}
    for entry in os.scandir("/"):
        if entry.is_dir(follow_symlinks=False):
            places.add(entry.path)
            if entry.name not in ("proc", "sys"):
                try:
                    places |= {inner.path for inner in os.scandir(entry.path) if inner.is_dir(follow_symlinks=False)}
                except OSError:
                    pass
    found = []
    for place in sorted(places):
        path = os.path.join(place, "made-here")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            os.unlink(path)
            found.append(place)
        except OSError:
            pass
    return found


def masked():
    """Paths of the kernel that have a mount of their own over them, with what can be read there."""
    found = {}
    for line in mounts():
        target, kind, _, options, *_ = line.split()
        if target.startswith((PROC + "/", "/sys/")) and not target.startswith("/sys/fs/cgroup"):
            is_folder = os.path.isdir(target)
            content = attempt(os.listdir, target) if is_folder else read(target)
            found[target] = {
                "kind": kind,
                "options": options,
                "content": content if content == [] or isinstance(content, str) else len(content),
            }
    return found


def interfaces():
    found = {}
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _, name in socket.if_nameindex():
        request = struct.pack("16s16x", name.encode())
        flags = attempt(fcntl.ioctl, probe, 0x8913, request)
        found[name] = hex(struct.unpack_from("H", flags, 16)[0]) if isinstance(flags, bytes) else flags
    probe.close()
    return {
        "names": found,
        "addresses": [" ".join(line.split()) for line in read(PROC + "/net/if_inet6").splitlines()],
        "routes": read(PROC + "/net/route").splitlines()[1:],
        "hosts": read("/etc/hosts"),
        "resolver": read("/etc/resolv.conf"),
        "file of the name": read("/etc/hostname"),
    }


def process():
    ids = {
        "parent": read(f"{PROC}/{os.getppid()}/comm"),
        "group": os.getpgid(0) == os.getpid(),
        "session": os.getsid(0) == os.getpid(),
    }
    ids |= {"terminal": attempt(os.open, "/dev/tty", os.O_RDWR)}
    ids |= {"users": [*os.getresuid()], "groups": [*os.getresgid()], "others": os.getgroups()}
    return ids


def prctl():
    """Settings of a process."""
    names = {
        "dumpable": 3,
        "keep capabilities": 7,
        "timing": 13,
        "seccomp": 21,
        "securebits": 27,
        "timer slack": 30,
        "no new privileges": 39,
        "huge pages off": 42,
        "speculation 0": 52,
        "memory-deny-write": 66,
        "merge": 68,
    }
    return {name: call("prctl", number, 0, 0, 0, 0) for name, number in names.items()} | {
        "bounding set": [number for number in range(64) if call("prctl", 23, number, 0, 0, 0) == 1],
        "ambient set": [number for number in range(64) if call("prctl", 47, 1, number, 0, 0) == 1],
    }


def keyrings():
    numbers = {"x86_64": (250, 248, 249), "aarch64": (219, 217, 218)}[os.uname().machine]
    names = ["keyctl", "add_key", "request_key"]
    return {name: call("syscall", number, 0, -3, 0, 0, 0) for name, number in zip(names, numbers)} | {
        "keys": read(PROC + "/keys"),
        "key-users": "seen" if read(PROC + "/key-users") != "" else "",
    }


def sysctls():
    """Settings of the kernel: how many there are, and how they can be opened."""
    seen, counts = [], {"readable": 0, "refused": 0, "writable": 0}
    for folder, _, files in os.walk(PROC + "/sys"):
        for name in files:
            path = os.path.join(folder, name)
            seen.append(path)
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
                counts["readable"] += 1
            except OSError:
                counts["refused"] += 1
            if os.access(path, os.W_OK):
                counts["writable"] += 1
    of_network = [
        "ipv4/ip_forward",
        "ipv4/ping_group_range",
        "ipv4/ip_unprivileged_port_start",
        "ipv6/conf/all/disable_ipv6",
        "ipv6/conf/lo/disable_ipv6",
    ]
    values = {name: " ".join(read(f"{PROC}/sys/net/{name}").split()) for name in of_network}
    names = ["hostname", "domainname", "msgmax", "shmmax", "sem", "ns_last_pid", "overflowuid", "keys/maxkeys"]
    values |= {name: " ".join(read(f"{PROC}/sys/kernel/{name}").split()) for name in names if name != "ns_last_pid"}
    return counts | {"values": values, "files": len(seen)}


def groups():
    """The control groups as they are seen, with the limits in them."""
    lines = [line.split(":", 2) for line in read(SELF + "cgroup").splitlines()]
    found = {}
    for folder, _, files in os.walk("/sys/fs/cgroup"):
        for name in files:
            if re.search(
                r"max$|limit_in_bytes|cfs_|cpu\.shares|weight|swappiness|devices.list|burst|oom_control|freeze$", name
            ):
                found[os.path.join(folder, name)] = read(os.path.join(folder, name))
    return {
        "of the process": sorted(f"{names}:{path}" for _, names, path in lines),
        "files": found,
        "folder": sorted(os.listdir("/sys/fs/cgroup")),
    }


def clocks():
    return {"boot offset": read(SELF + "timens_offsets"), "offsets writable": os.access(SELF + "timens_offsets", os.W_OK)}


def roots():
    """The folders of the root, with their owners and modes."""
    found = []
    for name in sorted(os.listdir("/")):
        info = os.lstat("/" + name)
        found.append(f"/{name} {stat.filemode(info.st_mode)} {info.st_uid}:{info.st_gid}")
    for place in ["/workspace", "/tmp", "/dev/shm", "/"]:
        if os.path.isdir(place):
            disk = os.statvfs(place)
            found.append(
                f"{place} bytes={disk.f_blocks * disk.f_frsize} files={disk.f_files} flags={disk.f_flag}"
                if place != "/"
                else f"/ flags={disk.f_flag}"
            )
    return found


def scheduling():
    return {
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "policy": os.sched_getscheduler(0),
        "CPUs": os.sched_getaffinity(0) == set(range(os.cpu_count())),
        "I/O priority": call("syscall", {"x86_64": 252, "aarch64": 31}[os.uname().machine], 1, 0),
        "personality": read(SELF + "personality"),
        "slack": read(SELF + "timerslack_ns"),
        "autogroup": read(SELF + "autogroup").startswith("/"),
        "coredump_filter": read(SELF + "coredump_filter"),
    }


def processes():
    """The names of the processes that are seen, each with that of its parent."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir(PROC)):
        # One may end meanwhile, and then there is only the reason why nothing can be read.
        fields = read(f"{PROC}/{pid}/stat").rpartition(")")[2].split()
        parents[pid] = fields[1] if fields else "0"
    names = {pid: read(f"{PROC}/{pid}/comm") for pid in parents}
    return sorted({f"{names[pid]} of {names.get(parent, 'no process')}" for pid, parent in parents.items()})


def look():
    attributes = attempt(os.listdir, SELF + "attr")
    return {
        "status": status(),
        "mounts": mounts(),
        "masked": masked(),
        "attributes": {name: read(f"{SELF}attr/{name}") for name in sorted(attributes)}
        if isinstance(attributes, list)
        else attributes,
        "control groups": groups(),
        "limits": limits(),
        "users": {
            name: [" ".join(line.split()) for line in read(SELF + name).splitlines()]
            for name in ("uid_map", "gid_map", "projid_map", "setgroups")
        },
        "memory": {name: read(SELF + name) for name in ("oom_score_adj", "oom_adj", "loginuid", "sessionid")},
        "namespaces": sorted(os.listdir(SELF + "ns")),
        "descriptors": descriptors(),
        "devices": devices(),
        "usable": usable(),
        "sysctls": sysctls(),
        "environment": {name: value for name, value in sorted(os.environ.items())},
        "umask": oct(os.umask(0o022)),
        "folder": os.getcwd(),
        "process": process(),
        "settings": prctl(),
        "keyrings": keyrings(),
        "name": [socket.gethostname(), read(PROC + "/sys/kernel/domainname")],
        "network": interfaces(),
        "roots": roots(),
        "scheduling": scheduling(),
        "clocks": clocks(),
        "processes": processes(),
        "writable": writable(),
        "writable folders": folders(),
    }


print(json.dumps(look()))
