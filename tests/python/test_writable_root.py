"""Sessions with a home and a root that takes new files: the machine that agents and their frameworks expect.

What such a session adds to its root is bounded, is seen by no other session, and is gone with it. Files of the image, the runner's
folder and mount points stay as they are. All other limits and restrictions are those of every sandbox; `test_inside.py` compares
them.
"""

import engine
import pytest
from server import configuration
from session_calls import at_once, open_session, opened, serving

EMBEDDED = engine.KIND == "embedded"

# With a quarter of it for the home, for /tmp and for the root.
MEMORY_MIB = 256
QUARTER_MIB = MEMORY_MIB // 4

# Files and folders in each of these file systems.
INODES = 8192

# Folders to which programs can add files, and the paths of new ones.
OPEN = ["/workspace", "/data", "/mnt", "/srv"]
OPEN_WHEN_EMBEDDED = ["", "/etc", "/home", "/media", "/opt", "/run", "/usr/local/bin", "/usr/local/lib", "/var", "/var/lib", "/var/log"]
CLOSED_ON_DOCKER = ["", "/etc", "/home", "/opt", "/usr/local/bin", "/var/lib"]
CLOSED = ["/usr/bin", "/usr/lib", "/root", "/dev", "/proc", "/sys", "/.isolator", "/.isolator/session", "/.isolator/packages"]

# Each would change what the image, the engine or the runner has put there.
CHANGES = [
    "echo x >>/etc/passwd",
    "mv /etc/passwd /etc/former",
    "rm /etc/passwd",
    "rm /etc/hosts",
    "echo 192.0.2.1 name >>/etc/hosts",
    "echo nameserver 192.0.2.1 >>/etc/resolv.conf",
    "mv /etc/resolv.conf /etc/former",
    "mv /etc /former",
    "mv /usr /former",
    "rm /bin",
    "ln -sfn /tmp /bin",
    "mv /usr/local /usr/former",
    "rm -r /usr/lib/python3*/json",
    "cp /dev/null /usr/bin/python3",
    "mv /.isolator /former",
    "rm -r /.isolator/session",
    "touch /.isolator/isolator-runner",
    "mv /home /former",
    "mv /home/user /home/former",
    "rmdir /home/user",
    "rmdir /proc",
    "chmod 777 /etc",
    "chmod 777 /",
    "chown 1000 /etc",
    "mknod /tmp/null c 1 3",
    "mknod /tmp/whiteout c 0 0",
    "mount -t tmpfs none /home/user",
]


@pytest.fixture(scope="module")
async def place(anyio_backend, tmp_path_factory):
    """A server with such sessions, and an ordinary one of another language with the same image."""
    folder = tmp_path_factory.mktemp("shape")
    ordinary = {"image": "isolator/python", "extensions": [".py"], "command": ["python3", "{file}"]}
    config = configuration(
        folder,
        pool={"size": 1, "hot": 1},
        languageSettings={"python": {"writableRoot": True, "memoryMB": MEMORY_MIB}, "ordinary": ordinary},
    )
    async with serving(folder, config) as (server, tools):
        yield server, tools


async def succeeds(session, command):
    """What a command prints, without the end of its last line."""
    return (await session.command(command))["stdout"].removesuffix("\n")


async def test_the_home_is_the_working_directory(place):
    _, tools = place
    async with opened(tools) as session:
        await session.cell("import os, pathlib; pathlib.Path('~/mine').expanduser().write_text('mine')")
        home = ["/home/user"] * 4
        shown = "os.getcwd(), os.path.expanduser('~'), os.environ['HOME'], str(pathlib.Path.home())"
        assert await session.value(shown) == str(tuple(home))
        command = "pwd; echo ~; echo $HOME; bash -c 'echo ~'; cat mine"
        assert await succeeds(session, command) == "\n".join([*home, "mine"])
        # A file that is sent, and one that comes back.
        data = await session.cell(
            "open('out', 'w').write(open('in').read())",
            additional_files=[{"filename": "in", "content": "sent"}],
        )
        assert data["status"] == "success"
        assert await succeeds(session, "cat /home/user/out") == "sent"


async def test_the_user_has_a_name(place):
    _, tools = place
    name, home = ("user", "/home/user") if EMBEDDED else ("sandbox", "/tmp")
    async with opened(tools) as session:
        assert await succeeds(session, "whoami; id -gn; id -u") == f"{name}\n{name}\n1000"
        found = "import getpass, pwd; (getpass.getuser(), pwd.getpwuid(1000).pw_dir, pwd.getpwuid(1000).pw_shell)"
        assert await session.value(found) == f"('{name}', '{home}', '/bin/bash')"
        # The users of the image are still there.
        assert await session.value("pwd.getpwnam('root').pw_uid") == "0"


async def test_files_and_folders_can_be_added_and_are_gone_with_the_session(place):
    _, tools = place
    folders = OPEN + (OPEN_WHEN_EMBEDDED if EMBEDDED else [])
    async with opened(tools) as session:
        for folder in folders:
            await session.command(f"mkdir -p {folder}/agent/below && echo mine >{folder}/agent/below/file && mv {folder}/agent {folder}/its")
        if EMBEDDED:
            await session.command("mkdir -p /workspace /repo && cd /repo && git init -q . && rm -r /workspace && mkdir /workspace")
            await session.command("printf '#!/bin/bash\\necho started\\n' >/usr/local/bin/tool && chmod +x /usr/local/bin/tool")
            assert await succeeds(session, "tool") == "started"
        # Cells see the same, and what they made is there until the end.
        places = [f"{folder}/its/below/file" for folder in folders]
        if not EMBEDDED:
            assert await session.value(f"[open(path).read() for path in {places}]") == str(["mine\n"] * len(places))
        else:
            places.remove("/workspace/its/below/file")
            assert await session.value(f"{{open(path).read() for path in {places}}}") == "{'mine\\n'}"
    async with opened(tools) as session:
        assert await session.value(f"import os; [path for path in {places} if os.path.exists(path)]") == "[]"


async def test_files_of_the_image_and_the_engine_cannot_be_changed(place):
    _, tools = place
    listing = "ls -ld / /etc /usr /usr/local /home /home/user /bin /.isolator /.isolator/*; cat /etc/passwd /etc/hosts /etc/resolv.conf"
    async with opened(tools) as session:
        before = await succeeds(session, listing)
        for change in CHANGES:
            data = await session.command(change, status="error")
            assert data["exit_code"] not in (0, 127), (change, data)
        for folder in CLOSED + ([] if EMBEDDED else CLOSED_ON_DOCKER):
            data = await session.command(f"touch {folder}/added", status="error")
            assert data["exit_code"] == 1, (folder, data)
        assert await succeeds(session, listing) == before
        # Set-user-ID has no effect on what is added, and there is no way to become another user.
        await session.command("cp /bin/sh /tmp/sh && chmod 6755 /tmp/sh")
        assert await succeeds(session, "grep -c nosuid /proc/mounts >/dev/null; /tmp/sh -c 'id -u'") == "1000"
        await session.command("sudo true", status="error")


async def test_other_languages_have_the_root_of_before(place):
    _, tools = place
    result = await tools.call(
        "execute_code",
        {
            "language": "ordinary",
            "entrypoint_code": "import os\nprint(os.getcwd(), os.environ['HOME'], os.statvfs('/').f_flag & os.ST_RDONLY)\n"
            "for place in ('', '/etc', '/home/user', '/data'):\n"
            "    try: print(open(place + '/x', 'w'))\n    except OSError as error: print('refused')",
        },
    )
    assert result.structured_content["stdout"] == "/workspace /tmp 1\n" + "refused\n" * 4, result.content


FILL = """
def fill(folder):
    written = 0
    try:
        with open(folder + '/full', 'wb', 0) as file:
            while True:
                written += file.write(bytes(1 << 20))
    except OSError as error:
        return written >> 20, error.strerror
def crowd(folder):
    made = 0
    try:
        while True:
            open(f'{folder}/{made}', 'w').close()
            made += 1
    except OSError as error:
        return made, error.strerror
"""
NO_SPACE = "No space left on device"
PLACE = "/" if EMBEDDED else "/data"


async def test_a_root_takes_a_bounded_number_of_bytes_and_files(place):
    _, tools = place
    async with opened(tools) as neighbour, opened(tools) as session:
        await session.cell(FILL)
        data = await session.cell(f"fill({PLACE!r})")
        megabytes, error = data["result"].strip("()").split(", ")
        assert QUARTER_MIB - 1 <= int(megabytes) <= QUARTER_MIB and error == repr(NO_SPACE), data
        if EMBEDDED:
            failed = await session.answer("open('/data', 'wb').write(bytes(1 << 20))")
            message = f"the disk limit was reached: / ({QUARTER_MIB} MiB, {INODES} files) is full; write less"
            assert failed.is_error and message in str(failed.content), failed
        # The home and /tmp have room of their own, and room comes back.
        await session.command(f"echo well >~/well && echo well >/tmp/well && rm {PLACE}/full && mkdir {PLACE}/crowd")
        made, error = (await session.value(f"crowd('{PLACE}/crowd')")).strip("()").split(", ")
        assert INODES - 100 < int(made) < INODES and error == repr(NO_SPACE)
        # Another sandbox has all of its own.
        await neighbour.cell(FILL)
        assert int((await neighbour.value(f"fill({PLACE!r})")).strip("()").split(", ")[0]) >= QUARTER_MIB - 1
        assert await session.value("1 + 1") == "2"


async def test_what_is_added_counts_against_the_memory_of_the_sandbox(place):
    _, tools = place
    async with opened(tools) as neighbour, opened(tools) as session:
        await neighbour.cell("x = 1")
        await session.cell(FILL + "x = 1")
        for folder in (PLACE, "/tmp"):
            assert int((await session.value(f"fill({folder!r})")).strip("()").split(", ")[0]) >= QUARTER_MIB - 1
        listing = f"ls -l {PLACE}/full /tmp/full"
        before = await succeeds(session, listing)
        # Half of the memory is left for all programs together.
        data = await session.cell("held = bytearray(b'x') * (160 << 20)", status="out_of_memory")
        assert str(MEMORY_MIB) in data["message"], data
        assert await neighbour.value("x") == "1"
        # Files stay, and the session goes on.
        assert await succeeds(session, listing) == before
        await session.command(f"rm {PLACE}/full /tmp/full")
        await session.cell("held = bytearray(b'x') * (160 << 20); del held")


# What a program adds so that other programs of its session become others: interpreters, shells, libraries, modules.
TRAPS = {
    "libraries": "open('/etc/ld.so.preload', 'w').write('/data/none.so\\n')",
    "interpreters": "\nfor name in ('python3', 'python', 'sh', 'bash', 'env', 'ls'):\n"
    "    path = '/usr/local/bin/' + name\n"
    "    open(path, 'w').write('#!/bin/false\\n'); os.chmod(path, 0o755)",
    "modules": "\nimport sys\nfor name in ('json', 'ast', 'socket', 'sitecustomize', 'kernel', 'cells'):\n"
    "    for folder in {'/', '/home/user', '/usr/local/lib', '/etc', '/workspace'}:\n"
    "        open(f'{folder}/{name}.py', 'w').write('import os; os._exit(7)')",
    "accounts": "\nfor name in ('shadow', 'nsswitch.conf', 'group-', 'ld.so.cache', 'profile.d', 'sudoers'):\n"
    "    try: open('/etc/' + name, 'x').write('user:')\n    except OSError: pass",
}


@pytest.mark.only_on("embedded")
async def test_traps_in_the_root_only_harm_their_own_session(place):
    server, tools = place
    neighbour = await open_session(tools)
    await neighbour.cell("x = 1")

    async def attack(trap):
        async with opened(tools) as session:
            await session.cell("import os; x = 1")
            data = (await session.answer("None" if trap is None else TRAPS[trap])).structured_content
            assert data["status"] == "success", (trap, data)
            # The end of the interpreter: the runner undoes the cell, or starts another interpreter, and says which.
            for code, status in [("os._exit(3)", "error"), ("os.kill(os.getpid(), 9)", "error")]:
                data = (await session.answer(code)).structured_content
                if data["status"] == "session_gone":
                    return
                assert data["status"] == status, (trap, data)
            # A command's end is as the runner saw it, whatever was started.
            data = (await session.call("run_command", command="exit 5")).structured_content
            assert data["status"] in ("error", "session_gone"), (trap, data)
            data = (await session.answer("x")).structured_content
            if data["status"] == "success":
                assert data["result"] == "1", (trap, data)

    await at_once(attack, list(TRAPS))
    assert await neighbour.value("x") == "1"
    await neighbour.close()
    async with opened(tools) as session:
        assert await session.value("1 + 1") == "2"
        assert await succeeds(session, "ls /usr/local/bin/sh /etc/ld.so.preload 2>&1 | grep -c cannot") == "2"
