"""Another image under the name of one that a running server uses: built, loaded, tagged or imported."""

import os

import engine
import pytest
from faults import POOLED, copy_images, is_filled, running, serving, succeeds
from processes import children, has_sandboxes
from server import receipt, until
from test_resources import read_json

NAME = "isolator-test/replaced"
MARKED = "import os; print(os.environ['MARK'])"

# A server looks every five seconds.
REPLACED_WITHIN_S = 30


@pytest.fixture
def images(tmp_path_factory, monkeypatch):
    """The digests of two Python images, of which the first has the name."""
    if engine.KIND == "embedded":
        assert os.geteuid() == 0, "a store can be copied only by root: run these tests as root"
        folder = tmp_path_factory.mktemp("store")
        copy_images(folder)
        monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    marks = ["first", "second"]
    names = [f"isolator-test/{mark}" for mark in marks]
    for name, mark in zip(names, marks):
        engine.derive("isolator/python", name, f"MARK={mark}")
    engine.tag(names[0], NAME)
    yield {mark: engine.image_id(name) for mark, name in zip(marks, names)}
    if engine.KIND == "docker":
        for name in [*names, NAME]:
            engine.remove_image(name)


async def test_a_replaced_image_is_used_from_then_on(tmp_path, images):
    first, second = images["first"], images["second"]
    async with serving(tmp_path, languages={"python": {"image": NAME}}) as server:
        await is_filled(server)
        assert await of_pool(server) == {"digest": first, "outdated": 0}
        await succeeds(server, MARKED, expected="first\n")
        assert await in_sessions(server) == {"first\n"}
        launchers = makers(server.pid)

        async with running(server, f"import time; time.sleep(10); {MARKED}") as results:
            engine.tag("isolator-test/second", NAME)
            await until(lambda: are_replaced(server, second), REPLACED_WITHIN_S, "sandboxes of the new image")
            result = await server.call(language="python", entrypoint_code=MARKED)
            assert result.structured_content["stdout"] == "second\n", result.content
            assert receipt(result)["image"] == second
            assert receipt(result)["start"] in ("hot", "warm")
            assert await of_pool(server) == {"digest": second, "former_digest": first, "outdated": 0}
            assert await in_sessions(server) == {"second\n"}
        assert results[0].structured_content["stdout"] == "runs\nfirst\n", results[0].content

        # What made its sandboxes has an end, too.
        await until(lambda: not launchers & makers(server.pid), REPLACED_WITHIN_S, "the end of the launchers")
        said = server.log.read_text()
        assert said.count("the image was replaced") == 1 and first in said and second in said, said


async def in_sessions(server):
    """What cells of a few sessions print. The kernels of the first ones come from no template, if the engine has templates."""
    printed = set()
    for _ in range(4):
        opened = await server.client.call_tool("open_session", {"language": "python"})
        session = {"session": opened.structured_content["session"]}
        cell = await server.client.call_tool("execute_code", {**session, "entrypoint_code": MARKED})
        printed.add(cell.structured_content["stdout"])
        await server.client.call_tool("close_session", session)
    return printed


async def of_pool(server):
    pool = (await read_json(server, "isolator://pool"))["pools"]["python"]
    return {name: pool[name] for name in ("digest", "former_digest", "outdated") if name in pool}


def are_replaced(server, image):
    """Whether as many wait as should, all of them of this image. One more may have a program."""
    waiting = [sandbox.state for sandbox in engine.sandboxes(server.instance) if sandbox.image == image]
    return sorted(waiting) == ["paused"] * (POOLED - 1) + ["running"]


def makers(pid):
    """The launchers of a server that have made something, if its engine has launchers."""
    return {inner for outer in children(pid) for inner in children(outer) if has_sandboxes(inner)}
