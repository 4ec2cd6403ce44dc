"""Many requests with many sets at once, while sets are removed and built again: each sees its own set and no other."""

import random

import anyio
import engine
import package_sets
import pytest
from package_index import Index, Packages
from package_sets import python_set, serving, used

SEED = 7
SETS = 10
# A container takes longer to make than to be used.
REQUESTS = {"embedded": 100, "docker": 40}[engine.KIND]
AT_ONCE = 4

PROGRAM = """
import importlib.util, which
print(which.number, [n for n in range(10) if importlib.util.find_spec(f"own_{n}")])
"""


def numbered():
    """Packages that have a module of the same name, and one of their own."""
    found = Packages()
    for number in range(SETS):
        files = {"which.py": f"number = {number}\n", f"own_{number}.py": ""}
        found.wheel(f"package-{number}", files=files)
    return found


@pytest.mark.any_engine
async def test_each_request_sees_its_own_set_and_no_other(tmp_path):
    dice = random.Random(SEED)
    names = {f"set-{number}": python_set(f"package-{number}") for number in range(SETS)}
    with Index(numbered()) as index:
        pool = {"size": AT_ONCE, "hot": 2}
        config = package_sets.config(tmp_path, names, {"python": index.python()}, {"python"}, pool=pool)
        async with serving(tmp_path, config) as server:
            await server.are("ready")
            numbers = [number % SETS for number in range(REQUESTS)]
            dice.shuffle(numbers)
            hashes, removed = {}, []
            ended = anyio.Event()

            async def ask():
                while numbers:
                    number = numbers.pop()
                    result = await server.call(PROGRAM, f"set-{number}", timeout="30s")
                    assert not result.is_error, result.content
                    assert result.structured_content["stdout"] == f"{number} [{number}]\n"
                    assert hashes.setdefault(number, used(result)["hash"]) == used(result)["hash"]

            async def remove():
                while not ended.is_set():
                    name = f"set-{dice.randrange(SETS)}"
                    arguments = (tmp_path, config, server.store, "packages", "rm", name)
                    done = await anyio.to_thread.run_sync(package_sets.command, *arguments)
                    # One that is in use stays, and one that was removed may not be there yet.
                    assert done.returncode == 0 or "in use" in done.stderr or "is not built" in done.stderr, done
                    removed.extend([name] if done.returncode == 0 else [])
                    await anyio.sleep(0.3)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(remove)
                async with anyio.create_task_group() as calls:
                    for _ in range(AT_ONCE):
                        calls.start_soon(ask)
                ended.set()
            assert removed and len(set(hashes.values())) == SETS
            # What was removed comes again when it is asked for.
            for number in range(SETS):
                assert await server.prints(PROGRAM, f"set-{number}") == f"{number} [{number}]\n"
            assert {path.name for path in server.store.sets()} == set(hashes.values())
            assert server.store.unfinished() == []
