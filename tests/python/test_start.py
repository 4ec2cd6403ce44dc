"""No part of the environment of a server reaches its programs, and every server ends on its signals."""

import json
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import anyio
import engine
import odd_start
import processes
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from server import BINARY, command, configuration, environment, instances, process_with, receipt

STARTER = [sys.executable, odd_start.__file__]

# A template is made after the server has started.
FORKED_WITHIN_S = 30

# What the kernel says about a process. A program whose source has the name of the folder gets a new interpreter.
PYTHON = """
import json, os
of = "/pr" "oc/self/"
status = dict(line.split(":", 1) for line in open(of + "status"))
stat = open(of + "stat").read().rpartition(")")[2].split()
print(json.dumps({
    "limits": open(of + "limits").read().splitlines(),
    "status": {name: status[name].strip() for name in ("Umask", "SigBlk", "SigIgn", "SigPnd", "THP_enabled")},
    "nice": stat[16], "policy": stat[38], "personality": open(of + "personality").read().strip(),
    "slack": open(of + "timerslack_ns").read().strip(), "oom": open(of + "oom_score_adj").read().strip(),
}))
"""
NODE = """
const { readFileSync } = require('fs'), of = '/pr' + 'oc/self/';
const lines = (name) => readFileSync(of + name, 'utf8').split('\\n');
console.log(JSON.stringify({
  limits: lines('limits'), status: lines('status').filter((line) => /^(Umask|Sig(Blk|Ign|Pnd)):/.test(line)),
  nice: lines('stat')[0].split(') ')[1].split(' ')[16], oom: lines('oom_score_adj')[0],
}));
"""
BASH = "cat /proc/self/limits; grep -E '^(Umask|Sig(Blk|Ign|Pnd)):' /proc/self/status; nice; umask; ulimit -a\n"
GO = """package main
import ("fmt"; "os"; "os/exec")
func main() {
	for _, name := range []string{"limits", "oom_score_adj"} {
		text, _ := os.ReadFile("/proc/self/" + name)
		fmt.Println(string(text))
	}
	text, err := exec.Command("sh", "-c", "grep -E '^(Umask|Sig(Blk|Ign|Pnd)):' /proc/self/status; nice").CombinedOutput()
	fmt.Println(string(text), err)
}
"""
# A program for each way to start one. The first word of the name is the language.
PROGRAMS = {
    "python in a new interpreter": PYTHON.replace('"/pr" "oc/self/"', '"/proc/self/"'),
    "python in one that waited": PYTHON,
    "forked with its module": PYTHON + "\nif 0: import decimal\n",
    "javascript in a new interpreter": NODE.replace("'/pr' + 'oc/self/'", "'/proc/self/'"),
    "javascript in one that waited": NODE,
    "bash": BASH,
    "go": GO,
}


def languages():
    small = {"size": 1, "hot": 0}
    python = {"image": "isolator/python", "pool": {"size": 2, "hot": 0}}
    forked = python | {"command": ["python3", "{file}"], "extensions": [".pyf"], "defaultFile": "main.py"}
    bash = {"image": "isolator/python", "command": ["bash", "{file}"], "extensions": [".sh"], "defaultFile": "main.sh"}
    return {
        "python": {"pool": {"size": 2, "hot": 0}},
        "javascript": {"pool": {"size": 2, "hot": 0}},
        "go": {"pool": small},
        "bash": bash | {"pool": {"size": 0, "hot": 0}},
        "forked": forked | {"preload": {"interpreter": "python", "modules": ["decimal"]}},
    }


@asynccontextmanager
async def started(folder, how):
    """A server that was started in this way."""
    folder.mkdir()
    start = [*STARTER, how, *command(configuration(folder, languageSettings=languages()))]
    parameters = StdioServerParameters(command=start[0], args=start[1:], env=environment(folder))
    async with Client(stdio_client(parameters), mode="auto", read_timeout_seconds=60) as client:
        yield client
    assert instances(folder) == set()


async def found(client, name):
    """The output of the program in an interpreter of the named kind."""
    arguments = {"language": name.split()[0], "entrypoint_code": PROGRAMS[name]}
    is_preloaded = None if " " not in name else "new" not in name
    with anyio.fail_after(FORKED_WITHIN_S):
        while True:
            result = await client.call_tool("execute_code", arguments)
            assert not result.is_error, result
            if is_preloaded in (None, receipt(result)["preloaded"]):
                return result.structured_content["stdout"]
            await anyio.sleep(0.5)


async def test_programs_inherit_nothing_from_the_parent_of_the_server(tmp_path):
    async with started(tmp_path / "plain", "plain") as client:
        expected = {name: await found(client, name) for name in PROGRAMS}
    async with started(tmp_path / "odd", "odd") as client:
        assert {name: await found(client, name) for name in PROGRAMS} == expected
    # And that is what it should be.
    python = json.loads(expected["python in a new interpreter"])
    assert python["status"]["Umask"] == "0022" and int(python["status"]["SigBlk"], 16) == 0
    assert (python["nice"], python["oom"]) == ("0", "500")
    limits = " ".join(" ".join(python["limits"]).split())
    for limit in [
        "cpu time unlimited unlimited",
        "file size unlimited unlimited",
        "stack size 8388608 unlimited",
        "open files 1024 1024",
        "address space unlimited unlimited",
    ]:
        assert limit in limits, limits
    # Python itself ignores SIGPIPE and SIGXFSZ.
    assert int(python["status"]["SigIgn"], 16) == 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    assert "SigIgn:\t0000000000000000" in expected["go"]


@pytest.mark.only_on("embedded")
async def test_launchers_have_no_file_of_the_parent_of_the_server(tmp_path):
    folder = tmp_path / "odd"
    async with started(folder, "odd") as client:
        await found(client, "bash")
        server = process_with(f"XDG_STATE_HOME={folder}")
        outer = processes.children(server)
        launchers = [launcher for parent in outer for launcher in processes.children(parent)]
        assert outer and launchers
        for pid in [*outer, *launchers]:
            assert odd_start.OPEN not in processes.open_paths(pid)


def run(folder, how, *arguments):
    """Runs a command to its end, started in this way."""
    start = [*STARTER, how, BINARY, "--engine", engine.KIND, "--config", str(configuration(folder)), *arguments]
    return subprocess.run(start, env=environment(folder), capture_output=True, text=True, timeout=60)


@pytest.mark.only_on("embedded")
@pytest.mark.parametrize("mask", ["000", "022", "027", "077", "177", "777"])
def test_a_sandbox_is_made_whatever_the_umask_is(tmp_path, mask):
    (tmp_path / "main.py").write_text("import os; print(oct(os.umask(0)))")
    start = f'umask {mask}; exec "$@"'
    isolator = [BINARY, "--engine", "embedded", "--config", str(configuration(tmp_path))]
    arguments = ["bash", "-c", start, "bash", *isolator, "run", "--out", str(tmp_path / "out"), str(tmp_path / "main.py")]
    finished = subprocess.run(arguments, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert (finished.stdout, finished.stderr, finished.returncode) == ("0o22\n", "", 0)
    # No other user can write to the state of the server.
    for path in (tmp_path / "isolator").rglob("*"):
        assert path.stat().st_mode & 0o022 == 0, path


@pytest.mark.only_on("embedded")
def test_limits_that_can_not_be_raised_are_named_and_programs_run(tmp_path):
    (tmp_path / "main.py").write_text("import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE))")
    finished = run(tmp_path, "bounded", "run", str(tmp_path / "main.py"))
    assert (finished.stdout, finished.returncode) == ("(512, 512)\n", 0), finished
    for name in ["NOFILE", "FSIZE", "CPU", "AS", "DATA", "STACK", "MEMLOCK", "SIGPENDING", "MSGQUEUE", "CORE"]:
        assert f"(RLIMIT_{name}) is " in finished.stderr and f"Limit{name}=" in finished.stderr, finished.stderr
    assert "NPROC" not in finished.stderr


def test_a_file_over_the_limit_is_reported(tmp_path):
    """The kernel would end the process without a word otherwise."""
    target = tmp_path / "page"
    with target.open("w") as file:
        file.truncate(odd_start.LIMITS["FSIZE"])
    start = [*STARTER, "bounded", BINARY, "config", "schema"]
    with target.open("a") as file:
        finished = subprocess.run(start, stdout=file, stderr=subprocess.PIPE, text=True, timeout=60)
    assert finished.returncode == 125 and "longer than this process may write (ulimit -f)" in finished.stderr, finished


@pytest.mark.parametrize("how", ["plain", "odd"])
def test_a_server_ends_on_sigterm_and_survives_the_terminal_if_hangups_are_ignored(tmp_path, how):
    started = [*STARTER, how, *command(configuration(tmp_path, pool={"size": 0, "hot": 0})), "--http", "127.0.0.1:0"]
    with subprocess.Popen(started, env=environment(tmp_path), stderr=subprocess.PIPE, text=True) as server:
        try:
            assert any("listening" in line for line in server.stderr)
            if how == "odd":
                server.send_signal(signal.SIGHUP)
                server.send_signal(signal.SIGINT)
                time.sleep(0.5)
                assert server.poll() is None
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=20) == 0
        finally:
            server.kill()
    assert instances(tmp_path) == set()
