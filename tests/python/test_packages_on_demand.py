"""Packages that calls ask for and no set has, and calls that ask for what there is not."""

import re

import anyio
import package_sets
import pytest
from package_index import Index, Packages
from package_sets import packages, python_set, serving, used
from server import receipt, shared, until
from session_calls import Tools

pytestmark = pytest.mark.any_engine

MIB = 1 << 20


def numbered(count, size=0):
    """Packages that differ in their numbers, each with a number of bytes that can't be compressed."""
    found = Packages()
    for number in range(count):
        content = f"number = {number}\n"
        files = {f"package_{number}.py": content}
        if size:
            files[f"package_{number}.bin"] = bytes((number * 7 + place * place) % 251 for place in range(1009)) * (size // 1009)
        found.wheel(f"package-{number}", files=files)
    return found


def on_demand(folder, index, sets=None, allow=("*",), max_sets=64, **settings):
    wanted = {"enabled": True, "allow": list(allow), "maxSets": max_sets}
    address = {"python": index.python(), "javascript": index.javascript()}
    return package_sets.config(folder, sets, address, onDemand=wanted, **settings)


@pytest.fixture(scope="module")
async def demand(anyio_backend, tmp_path_factory):
    """A server that builds whatever calls ask for, and its index."""
    folder = tmp_path_factory.mktemp("demand")
    found = packages()
    for name, files in numbered(2).files.items():
        found.files[name] = files
    with Index(found) as index:
        async with shared(serving(folder, on_demand(folder, index))) as server:
            yield server, index


def says(number):
    return f"import package_{number}; print(package_{number}.number)"


async def test_a_call_brings_its_packages(tmp_path):
    sets = {"small": python_set("gamma")}
    with Index(packages()) as index:
        async with serving(tmp_path, on_demand(tmp_path, index, sets, allow=["alpha", "odd.*", "plain"])) as server:
            told = []

            async def tell(progress, total, message):
                told.append(message)

            arguments = {"language": "python", "entrypoint_code": "import alpha; print(alpha.version)", "packages": ["alpha<2"]}
            result = await server.client.call_tool("execute_code", arguments, progress_callback=tell)
            assert result.structured_content["stdout"] == "1.1\n", result.content
            assert used(result)["sets"] == ["alpha<2"] and receipt(result)["ms"]["packages"] > 0
            assert any(told), "what is being done"

            # What it needs comes with it, and it can be together with a set.
            program = "import odd_name, gamma; print(odd_name.x, gamma.value)"
            assert await server.prints(program, "Odd_Name.pkg", "small") == "1 3\n"
            modules = "console.log(require('plain').part)"
            assert await server.prints(modules, "plain@^1.0.0", language="javascript") == "part\n"

            block = '# /// script\n# dependencies = ["alpha>=2"]\n# ///\nimport alpha; print(alpha.version)'
            assert await server.prints(block) == "2.0\n"

            refused = (await server.fails("1", "hook")).structured_content
            assert (refused["status"], refused["field"]) == ("invalid_arguments", "packages")
            for part in ("hook", "alpha, odd.*, plain", "small"):
                assert part in refused["message"], refused
            # Also by what is in the program, which then runs without.
            result = await server.call(block.replace("alpha>=2", "hook").replace("import alpha; print(alpha.version)", "print(1)"))
            assert result.structured_content["stdout"] == "1\n"
            assert "hook" in str(result.structured_content["notes"]) and "alpha, odd.*, plain" in str(result.content)
            assert not any("hook" in asked for asked in index.asked)

            advice = (await server.fails("import alpha")).structured_content["message"]
            assert 'call again with packages ["alpha"]' in advice, advice


async def test_packages_of_the_image_are_not_installed_again(demand):
    server, index = demand
    before = list(index.asked)
    program = "import numpy; print(numpy.__name__)"
    result = await server.call('# /// script\n# dependencies = ["NumPy>=1"]\n# ///\n' + program)
    assert result.structured_content["stdout"] == "numpy\n", result.content
    assert "packages" not in receipt(result) and "notes" not in result.structured_content
    result = await server.call(program, "numpy")
    assert result.structured_content["stdout"] == "numpy\n" and "packages" not in receipt(result), result.content
    assert "the image has numpy" in str(result.structured_content["notes"])
    assert index.asked == before
    # Another version is another package.
    assert "numpy==0.1" in str((await server.fails("1", "numpy==0.1")).content)


async def test_a_package_whose_marker_is_false_is_not_needed(demand):
    server, index = demand
    markers = "python_version < '3.9'", 'sys_platform == "win32" and python_version >= "3"', "platform_machine == 'vax'"
    requirements = [f"no-such ; {marker}" for marker in markers]
    result = await server.call("print(1)", *requirements)
    assert result.structured_content["stdout"] == "1\n" and "packages" not in receipt(result), result.content
    assert "nothing of this is needed" in str(result.structured_content["notes"])
    result = await server.call("import gamma; print(1)", "gamma; python_version >= '3.9'", *requirements)
    assert result.structured_content["stdout"] == "1\n" and "notes" not in result.structured_content, result.content
    assert used(result)["sets"] == ["gamma; python_version >= '3.9'"]
    assert "no-such" not in str(index.asked)


async def test_a_set_that_another_process_removes_is_released_and_built_again(tmp_path):
    with Index(packages()) as index:
        config = on_demand(tmp_path, index, {"named": python_set("alpha")}, languages={"python"})
        async with serving(tmp_path, config) as server:
            await server.are("ready")
            assert await server.prints("import gamma; print(gamma.value)", "gamma") == "3\n"
            assert await server.prints("import alpha; print(alpha.version)", "named") == "2.0\n"
            sets = {path.name for path in server.store.sets()}

            def remove():
                done = [package_sets.command(tmp_path, config, server.store, "packages", "rm", name[:12]) for name in sets]
                return all(one.returncode == 0 or "begins with" in one.stderr for one in done)

            # A sandbox that was just used has its set for another moment.
            with anyio.fail_after(package_sets.BUILT_WITHIN_S):
                while not await anyio.to_thread.run_sync(remove):
                    await anyio.sleep(0.2)
                while server.said().count("was removed by another process") < 2:
                    await anyio.sleep(0.2)
            await server.are("ready")
            assert await server.prints("import alpha; print(alpha.version)", "named") == "2.0\n"
            assert await server.prints("import gamma; print(gamma.value)", "gamma") == "3\n"


async def test_a_set_is_built_once_for_all_requests(demand, monkeypatch):
    server, index = demand
    assert await server.prints(says(0), "package-0") == "0\n"
    once = index.downloads("package_0")
    monkeypatch.setattr(index, "delay_s", 0.5)
    async with anyio.create_task_group() as calls:

        async def call():
            assert await server.prints(says(1), "package-1") == "1\n"

        for _ in range(8):
            calls.start_soon(call)
    assert index.downloads("package_1") == once > 0
    # Later requests get it at once, also with other words.
    before = list(index.asked)
    assert await server.prints(says(1), " Package_1") == "1\n"
    assert index.asked == before


async def test_a_long_build_is_detached_and_lives_on_when_its_caller_goes_away(tmp_path):
    with Index(numbered(3)) as index:
        index.delay_s = 1
        async with serving(tmp_path, on_demand(tmp_path, index, results={"detachAfter": "500ms"})) as server:
            result = await server.call(says(0), "package-0")
            data = result.structured_content
            assert data["status"] == "running", result.content
            with anyio.fail_after(package_sets.BUILT_WITHIN_S):
                while data["status"] == "running":
                    data = (await server.client.call_tool("get_result", {"handle": data["handle"]})).structured_content
            assert data["stdout"] == "0\n", data

            with anyio.move_on_after(0.3):
                await server.call(says(1), "package-1")
            with anyio.fail_after(package_sets.BUILT_WITHIN_S):
                while not server.store.files("package_1.py"):
                    await anyio.sleep(0.1)
            index.fails = "."
            tools = await Tools.of(server.client)
            opened = await tools.call("open_session", {"language": "python", "packages": ["package-1"]})
            assert not opened.is_error, opened.content


async def test_the_set_that_was_unused_longest_goes(tmp_path):
    with Index(numbered(5)) as index:
        sets = {"named": python_set("package-0")}
        config = on_demand(tmp_path, index, sets, max_sets=2, languages={"python"})
        async with serving(tmp_path, config) as server:
            tools = await Tools.of(server.client)
            await server.are("ready")
            opened = await tools.call("open_session", {"language": "python", "packages": ["package-1"]})
            session = opened.structured_content["session"]
            for number in (2, 3):
                assert await server.prints(says(number), f"package-{number}") == f"{number}\n"
            # The second of them goes: the first is in use, and the one with a name does not count.
            there = {number for number in range(5) if server.store.files(f"package_{number}.py")}
            assert there == {0, 1, 3}
            cell = {"session": session, "entrypoint_code": says(1)}
            assert (await tools.call("execute_code", cell)).structured_content["stdout"] == "1\n"
            # It comes again when it is asked for.
            assert await server.prints(says(2), "package-2") == "2\n"

            other = await tools.call("open_session", {"language": "python", "packages": ["package-2"]})
            message = (await server.fails(says(4), "package-4")).content[0].text
            assert "maxSets" in message and "in use" in message, message
            for handle in (session, other.structured_content["session"]):
                await tools.call("close_session", {"session": handle})
            assert await server.prints(says(4), "package-4") == "4\n"


async def test_all_sets_have_room_in_the_store(tmp_path):
    found = numbered(3, 2 * MIB // 5 * 4)
    large = {"large.py": "", "large.bin": bytes(range(256)) * (5 * MIB // 256)}
    found.wheel("large", files=large)
    with Index(found) as index:
        config = on_demand(tmp_path, index, maxStoreMB=4, languages={"python"})
        async with serving(tmp_path, config) as server:
            for number in range(3):
                assert await server.prints(says(number), f"package-{number}") == f"{number}\n"
            assert [bool(server.store.files(f"package_{number}.py")) for number in range(3)] == [False, True, True]
            message = (await server.fails("1", "large")).content[0].text
            for part in ("large", "more than 4 MiB", "maxStoreMB"):
                assert re.search(part, message), message
            await until(lambda: server.store.unfinished() == [], 5, "the end of what is not kept")
            assert server.store.files("large.py") == []


async def test_a_failure_is_remembered_for_a_moment(demand):
    server, index = demand
    first = (await server.fails("1", "no-such-package")).content[0].text
    assert first.startswith("Packages error: ") and "no-such-package" in first and "Nothing was run" in first, first
    asked = len(index.asked)
    for _ in range(5):
        again = (await server.fails("1", "no-such-package")).content[0].text
        assert "no-such-package" in again and "tried again" in again, again
    assert len(index.asked) == asked > 0
    # What others ask for has nothing to do with it.
    assert await server.prints("import gamma; print(1)", "gamma") == "1\n"


# What can't be asked for.

REQUIREMENTS = {
    "python": [
        "x @ https://example.org/x.whl",
        "x @ file:///etc",
        "git+https://example.org/x",
        "https://example.org/x-1.0-py3-none-any.whl",
        "-e .",
        "--index-url https://example.org",
        "-r /etc/passwd",
        "./x",
        "/etc/x.whl",
        "../x",
        "x --hash=sha256:00",
        "x\n--index-url=https://example.org",
        "x==1; $(id)",
        "x==",
        "x[",
        "==1",
        "x" * 400,
        "ünicode",
        "\0",
        "$HOME",
        "@/etc/passwd",
        "C:\\x",
        "!x",
    ],
    "javascript": [
        "x@https://example.org/x.tgz",
        "x@file:../x",
        "x@git+ssh://example.org/x",
        "owner/x",
        "github:owner/x",
        "x@npm:other@1",
        "npm:other",
        "x@link:../x",
        "x@workspace:*",
        "--registry=https://example.org",
        "-g",
        "../x",
        "/etc",
        "@scope",
        "@/x",
        "x@",
        "x@1\n@2",
        "x@latest; rm",
        "x" * 400,
        "node_modules",
    ],
}


async def is_refused(server, field, *said, language="python", **arguments):
    result = await server.server.call(language=language, entrypoint_code="1", **arguments)
    data = result.structured_content
    assert result.is_error and data and data["status"] == "invalid_arguments", (arguments, result.content)
    assert data["field"].startswith(field), data
    assert all(part in data["message"] for part in said), data
    assert len(data["message"]) < 3000, data
    return data["message"]


async def test_a_bad_requirement_is_refused_before_any_index_is_asked(demand):
    server, index = demand
    before = list(index.asked), server.store.sets()
    for language, requirements in REQUIREMENTS.items():
        for requirement in requirements:
            asked = ["gamma" if language == "python" else "plain", requirement]
            await is_refused(server, "packages", language=language, packages=asked)
    many = [f"package-{number}" for number in range(1000)]
    await is_refused(server, "packages", "1000", packages=many)
    assert (index.asked, server.store.sets()) == before


async def test_only_sets_can_be_asked_for_if_nothing_is_built_on_demand(sets):
    await sets.are("ready")
    message = await is_refused(sets, "packages", "txet", "text", packages=["txet"])
    assert "alpha" not in message
    await is_refused(sets, "packages", "alpha", "text", packages=["alpha==1.1"])
    await is_refused(sets, "packages", "tools", "javascript", "text", packages=["tools"])
    await is_refused(sets, "packages", "tools", "javascript", packages=["text", "tools"])
    await is_refused(sets, "packages", "text", language="javascript", packages=["text"])
    await is_refused(sets, "packages", packages=["text"] * 300 + ["no"] * 700)
    await is_refused(sets, "packages", packages=[{"name": "text"}])
    block = '# /// script\n# [tool.isolator]\n# packages = ["txet"]\n# ///\n'
    data = (await sets.fails(block)).structured_content
    assert data["field"] == "entrypoint_code" and "txet" in data["message"] and "script" in data["message"], data
    # What people mean is understood.
    program = "import alpha; print(alpha.value)"
    for packages in ("text", '["text"]', ["text", "text"], [" text "]):
        result = await sets.server.call(language="python", entrypoint_code=program, packages=packages)
        assert result.structured_content["stdout"] == "3\n", (packages, result.content)
    for packages in ([], None, ""):
        result = await sets.server.call(language="python", entrypoint_code="print(1)", packages=packages)
        assert result.structured_content["stdout"] == "1\n" and "packages" not in receipt(result), (packages, result.content)
