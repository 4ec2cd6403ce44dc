"""The clients of trainers in their own code, against a server: verl's function, and open-r1's client of Piston.

    pip download --no-deps verl==0.9.1
    pip install --target FOLDER aiohttp
    PYTHONPATH=FOLDER scripts/python tests/python/trainers.py --verl WHEEL --open-r1 piston_client.py [--batch 1000]

verl's package needs GPU libraries, so only its file for SandboxFusion is loaded, from the wheel. open-r1 is in no registry: the
file is `src/open_r1/utils/competitive_programming/piston_client.py` of its repository. Each judges a batch of programs of which a tenth
is bad, 64 at a time. The exit status is 1 if a verdict is wrong.
"""

import argparse
import asyncio
import importlib.util
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import apis
from apis import ERROR, FAILED, RIGHT, TIMEOUT, WRONG, serving

AT_ONCE = 64
TIMEOUT_S = 5
MEMORY_MB = 256
VERL = "verl/utils/reward_score/sandbox_fusion/utils.py"
# open-r1's client takes a program that prints "Resource temporarily unavailable", such as a fork bomb, for a server without room.
GIVEN_UP = "given up"
# As verl numbers them.
VERDICTS = {True: RIGHT, False: WRONG, -1: ERROR, -2: FAILED, -3: TIMEOUT, -4: FAILED}


def loaded(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_verl(wheel, place, programs):
    """The verdicts of verl's `check_correctness`."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as packed:
            verl = loaded(packed.extract(VERL, folder), "verl_sandbox_fusion")

        def judge(program):
            code, stdin, expected, _ = program
            cases = {"inputs": [stdin], "outputs": [expected]}
            url = "http://%s:%d/run_code" % place
            results, metadata = verl.check_correctness(url, cases, code, TIMEOUT_S, MEMORY_MB)
            return VERDICTS[results[0]], metadata[0]

        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(judge, programs))


async def by_open_r1(file, place, programs):
    """The verdicts that follow from the answers of open-r1's client."""
    client = loaded(file, "piston_client").PistonClient("http://%s:%d/api/v2" % place, max_requests_per_endpoint=AT_ONCE)

    async def judge(code, stdin, expected, _):
        files = [{"name": "main.py", "content": code}]
        limits = {"run_timeout": TIMEOUT_S * 1000, "run_memory_limit": MEMORY_MB << 20}
        answer = await client.send_execute({"files": files, "stdin": stdin} | limits, language="python")
        if answer is None:
            return GIVEN_UP, answer
        run = answer["run"]
        if run["code"] == 0 and run["signal"] is None:
            return (RIGHT if run["stdout"].strip() == expected.strip() else WRONG), run
        return (TIMEOUT if "[isolator] timeout: " in run["stderr"] else FAILED), run

    try:
        return await asyncio.gather(*(judge(*program) for program in programs))
    finally:
        await client.session.close()


def shown(name, programs, found):
    wrong = [
        (code, verdict, got, str(more)[-300:])
        for (code, *_, verdict), (got, more) in zip(programs, found, strict=True)
        if got == ERROR or verdict not in (got, None)
    ]
    print(f"{name}: {len(found)} programs, {len(wrong)} wrong verdicts", flush=True)
    for one in wrong[:5]:
        print(one)
    return not wrong


async def main(arguments):
    programs = apis.batch(arguments.batch)
    is_right = True
    with tempfile.TemporaryDirectory() as folder:
        settings = {"requests": {"maxRunning": 16, "maxRunningPerClient": 16, "maxQueue": 2048}}
        async with serving(Path(folder), {"sandboxFusion": {}, "piston": {}}, **settings) as (place, _):
            if arguments.verl:
                found = await anyio.to_thread.run_sync(by_verl, arguments.verl, place, programs)
                is_right &= shown("verl", programs, found)
            if arguments.open_r1:
                is_right &= shown("open-r1", programs, await by_open_r1(arguments.open_r1, place, programs))
    return is_right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verl", type=Path, metavar="WHEEL", help="a wheel of verl")
    parser.add_argument("--open-r1", type=Path, metavar="FILE", help="piston_client.py of open-r1")
    parser.add_argument("--batch", type=int, default=1000, help="number of programs")
    sys.exit(0 if asyncio.run(main(parser.parse_args())) else 1)
