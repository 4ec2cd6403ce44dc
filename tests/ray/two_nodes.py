"""Ray with two nodes: 1,000 programs, while an Isolator is killed, and none is lost. Then the price of each part.

    make test-ray
    make test-ray RAY="--programs 10000"
"""

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import isolator_ray
import ray
from isolator_ray.reward import compute_score
from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ISOLATOR_BIN") or str(ROOT / "target/release/isolator")
TASKS = 20
MEASURED = 200
CONFIG = {
    "languageSettings": {"python": {"preload": {"modules": []}}} | {name: {"enabled": False} for name in ("javascript", "go")},
    "pool": {"size": 4, "hot": 2},
}


@ray.remote
def some(numbers):
    """Runs a program for each number. Returns what they printed, and where."""
    found = []
    for number in numbers:
        ran = isolator_ray.run(f"print({number} ** 2)", timeout=20)
        found.append((number, ran.stdout, ran.address))
    return found


def median_ms(call, count=MEASURED):
    times = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1000)
    times.sort()
    return f"{statistics.median(times):.2f} ms, 99 %: {times[int(count * 0.99)]:.2f} ms"


def direct(address):
    """One program over HTTP, without this package, on a connection of its own."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=30)
    body = json.dumps({"code": "print(1)", "language": "python", "run_timeout": 10})
    connection.request("POST", "/run_code", body, {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    assert answer["run_result"]["stdout"] == "1\n", answer


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--programs", type=int, default=1000)
    programs = options.parse_args().programs
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    folder = Path(cluster.head_node.get_session_dir_path())
    config, tokens = folder / "isolator.json", folder / "tokens"
    own_address = ray.util.get_node_ip_address()
    # Other machines reach them, and the tasks of this one need no token.
    tokens.write_text(subprocess.run([BINARY, "token", "ray"], check=True, capture_output=True, text=True).stdout)
    open_to = {"apis": {"sandboxFusion": {"openTo": [own_address]}}, "http": {"tokens": str(tokens)}}
    config.write_text(json.dumps(CONFIG | open_to))
    engine = os.environ.get("ISOLATOR_TEST_ENGINE", "embedded")
    try:
        began = time.monotonic()
        states = isolator_ray.start(command=(BINARY, "--engine", engine), config=str(config), host="0.0.0.0")
        print(f"two nodes are ready after {time.monotonic() - began:.1f} s")
        assert len(states) == 2 and len({state["address"] for state in states}) == 2, states
        assert {urlsplit(state["address"]).hostname for state in states} == {own_address}, states
        # Calling it again starts nothing.
        assert {it["pid"] for it in isolator_ray.start()} == {it["pid"] for it in states}

        began = time.monotonic()
        numbers = [list(range(task, programs, TASKS)) for task in range(TASKS)]
        waiting = [some.options(scheduling_strategy="SPREAD").remote(part) for part in numbers]
        ended, rest = ray.wait(waiting, num_returns=TASKS // 4)
        victim = states[0]
        os.kill(victim["pid"], signal.SIGKILL)
        print(f"one of two Isolators is killed after {len(ended)} of {TASKS} tasks")
        found = [one for part in ray.get(waiting) for one in part]
        seconds = time.monotonic() - began
        wrong = [one for one in found if one[1] != f"{one[0] ** 2}\n"]
        assert len({one[0] for one in found}) == programs and not wrong, wrong[:5]
        print(f"{programs} programs, 0 lost, {programs / seconds:.0f} a second; by address:")
        for address in sorted({one[2] for one in found}):
            print(f"  {address}: {sum(one[2] == address for one in found)}")

        # It comes again by itself.
        again = {it["node"]: it for it in isolator_ray.start()}[victim["node"]]
        assert again["healthy"] and again["pid"] != victim["pid"], again

        truth = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3", "7"]}
        right = "It is:\n```python\na, b = map(int, input().split())\nprint(a + b)\n```"
        for answer, expected in [(right, 1.0), (right.replace("a + b", "3"), 0.5), ("no program", 0.0)]:
            assert compute_score("code", answer, json.dumps(truth)) == expected, answer
        assert compute_score("code", "```python\ndef f(x): return x\n```", {"asserts": ["assert f(1) == 1", "assert f(2) == 3"]}) == 0.5
        assert compute_score("code", "```python\nimport os; os._exit(0)\n```", {"asserts": ["assert False"]}) == 0.0
        try:
            isolator_ray.run("print(1)", language="cobol")
        except isolator_ray.Failed as error:
            assert "422" in str(error)
        else:
            raise AssertionError("a language that is not there was run")

        own = ray.get_runtime_context().get_node_id()
        address = {it["node"]: it for it in isolator_ray.states()}[own]["address"]
        actor = ray.get_actor(f"isolator-{own}", namespace="isolator")
        for name, call in [
            ("a no-op of the actor", lambda: ray.get(actor.nothing.remote())),
            ("a program by HTTP", lambda: direct(address)),
            ("the same by isolator_ray.run()", lambda: isolator_ray.run("print(1)")),
            ("a program by HTTP, again", lambda: direct(address)),
            ("the same by isolator_ray.run(), again", lambda: isolator_ray.run("print(1)")),
        ]:
            call()
            print(f"{name}: {median_ms(call)}")
        pids = [it["pid"] for it in isolator_ray.states()]
        isolator_ray.stop()
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        assert not left, left
        try:
            isolator_ray.run("print(1)", within=1)
        except isolator_ray.Unserved as error:
            assert "start()" in str(error)
        else:
            raise AssertionError("a program ran without nodes")
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
