"""Programs in Python with sets of packages from a real index: building, finding, requesting and listing sets."""

import re

import anyio
import package_sets
import pytest
from mcp.client.subscriptions import ResourceUpdated
from package_index import Index
from package_sets import SETS, packages, python_set, serving, used
from server import receipt
from session_calls import Tools, opened

HASH = re.compile("[0-9a-f]{64}")
LANGUAGES = "isolator://languages"

METADATA = """
from importlib.metadata import distribution, entry_points, version

print(version("alpha"), distribution("odd-name-pkg").version, [str(wanted) for wanted in distribution("alpha").requires])
(point,) = entry_points(group="isolator.test")
point.load()()
"""

CHILD = """
import subprocess, sys
for command in ([sys.executable, "-c", "import alpha; print(alpha.version)"], ["sh", "-c", "python3 -m odd_name && alpha"]):
    print(subprocess.run(command, capture_output=True, text=True, check=True).stdout, end="")
"""

# Where Python looks has to be the same as in an interpreter that was started for the program.
PATHS = """
import subprocess, sys
plain = subprocess.run([sys.executable, "-c", "import sys; print(sys.path[1:])"], capture_output=True, text=True, check=True)
print(eval(plain.stdout) == sys.path[1:], sys.path[1:])
"""

SHADOWS = """
import json, numpy, helper
print([getattr(module, "whose", None) for module in (json, numpy, helper)])
"""


@pytest.mark.any_engine
async def test_sets_are_built_in_the_background_and_hosts_are_notified(tmp_path):
    with Index(packages()) as index:
        index.delay_s = 0.5
        sets = {"text": SETS["text"], "none": python_set("no-such-package")}
        config = package_sets.config(tmp_path, sets, {"python": index.python()}, {"python"})
        async with serving(tmp_path, config) as server:
            # The server does not wait for them.
            assert await server.prints("print(1)") == "1\n"
            assert {found["state"] for found in (await server.listed()).values()} <= {"waiting", "building"}
            with anyio.fail_after(package_sets.BUILT_WITHIN_S):
                async with server.client.listen(resource_subscriptions=[LANGUAGES]) as told:
                    while (await server.listed())["text"]["state"] != "ready":
                        assert await anext(told) == ResourceUpdated(LANGUAGES)
            assert "no-such-package" in (await server.are("failed", "none"))["none"]["detail"]


async def test_the_list_names_the_packages_of_a_set(sets):
    listed = await sets.are("ready")
    assert set(listed) == {name for name, found in SETS.items() if found["language"] == "python"}
    text = listed["text"]
    assert text["packages"] == {"alpha": "1.1", "gamma": "1.0", "odd-name-pkg": "1.0"}
    assert {"alpha", "gamma", "odd_name"} <= set(text["modules"])


async def test_a_program_uses_the_set_that_it_asks_for(sets):
    result = await sets.call("import alpha; print(alpha.version, alpha.text, alpha.value)", "text")
    assert result.structured_content["stdout"] == "1.1 data of alpha 3\n", result.content
    told = used(result)
    assert told["sets"] == ["text"] and HASH.fullmatch(told["hash"]), told
    assert 0 <= receipt(result)["ms"]["bind"] < 1000
    assert "packages" not in receipt(await sets.call("print(1)"))


async def test_a_program_sees_no_set_that_it_has_not_asked_for(sets):
    looks = "import importlib.util as u; print([bool(u.find_spec(n)) for n in ('alpha', 'gamma', 'hook_at_start')])"
    assert await sets.prints(looks) == "[False, False, False]\n"
    assert await sets.prints(looks, "small") == "[False, True, False]\n"
    assert await sets.prints(looks, "text") == "[True, True, False]\n"


async def test_several_sets_are_one_set(sets):
    result = await sets.call("import alpha, hook_extra; print(alpha.value, hook_extra.x)", "text", "hooks")
    assert result.structured_content["stdout"] == "3 1\n", result.content
    assert sorted(used(result)["sets"]) == ["hooks", "text"]


async def test_metadata_and_entry_points_are_found(sets):
    assert await sets.prints(METADATA, "text") == "1.1 1.0 ['gamma>=1']\nalpha runs 3\n"


async def test_children_and_commands_have_the_set(sets):
    assert await sets.prints(CHILD, "text") == "1.1\nalpha runs 3\n"


async def test_files_that_change_the_path_are_read_as_at_every_start(sets):
    program = "import sys, hook_extra; print(sys.hooked, hook_extra.x)"
    assert await sets.prints(program, "hooks") == "True 1\n"


@pytest.mark.parametrize("names", [["text"], ["hooks"], ["text", "hooks"]], ids=" ".join)
async def test_the_path_equals_that_of_a_plain_start(sets, names):
    printed = await sets.prints(PATHS, *names)
    assert printed.startswith("True "), printed


async def test_the_programs_own_files_and_the_standard_library_come_first(sets):
    own = [{"filename": "helper.py", "content": "whose = 'program'"}]
    assert await sets.prints(SHADOWS, "shadows") == "[None, 'shadow', 'shadow']\n"
    assert await sets.prints(SHADOWS, "shadows", additional_files=own) == "[None, 'shadow', 'program']\n"


async def test_a_session_has_its_set_to_its_end(sets):
    tools = await Tools.of(sets.client)
    async with opened(tools, packages=["text"]) as session:
        assert session.receipt["packages"]["sets"] == ["text"]
        assert await session.value("import alpha; alpha.version") == "'1.1'"
        assert await session.value("alpha.value + __import__('odd_name').x") == "4"
        command = await session.command("python3 -c 'import alpha; print(alpha.text)' && alpha")
        assert command["stdout"] == "data of alpha\nalpha runs 3\n"
        await session.is_frozen()
        # A command is none of the cells that are undone.
        await session.rewind(1)
        assert await session.value("alpha.version") == "'1.1'"
        message = await tools.refuses("execute_code", "packages", session=session.id, entrypoint_code="1", packages=["text"])
        assert "open_session" in message


@pytest.mark.any_engine
async def test_a_block_in_a_cell_says_how_to_get_what_its_session_lacks(sets):
    await sets.are("ready")
    tools = await Tools.of(sets.client)
    async with opened(tools, packages=["small"]) as session:
        for lines in (['dependencies = ["gamma>=1", "Alpha<0"]'], ['dependencies = ["alpha>=1,<2"]'], ["dependencies = ["]):
            data = await session.cell(block(*lines) + "1")
            assert data["result"] == "1" and len(data["notes"]) == 1, data
        (note,) = (await session.cell(block('dependencies = ["alpha>=1,<2"]') + "1"))["notes"]
        assert "alpha" in note and 'open_session with packages ["text"]' in note, note
        # What its session or the image has is there.
        for lines in (['dependencies = ["gamma"]'], ['dependencies = ["numpy"]'], ["[tool.isolator]", 'packages = ["small"]']):
            data = await session.cell(block(*lines) + "import gamma, numpy; gamma.value")
            assert data["result"] == "3" and "notes" not in data, data
        refused = block("[tool.isolator]", 'packages = ["text"]') + "print(1)"
        message = await tools.refuses("execute_code", "entrypoint_code", session=session.id, entrypoint_code=refused)
        assert 'open_session with packages ["text"]' in message, message


@pytest.mark.any_engine
async def test_other_tools_take_packages(sets):
    checked = {"language": "python", "code": "import alpha", "packages": ["text"]}
    assert (await sets.client.call_tool("check_syntax", checked)).structured_content == {"valid": True}
    tested = await sets.client.call_tool("test_code", {"code": "import alpha; print(alpha.value)", "packages": ["text"]})
    assert tested.structured_content["stdout"] == "3\n", tested.content


def block(*lines):
    return "\n".join(["# /// script", *(f"# {line}".rstrip() for line in lines), "# ///", ""])


TOLD = "import importlib.util as u; print(bool(u.find_spec('alpha')))"


@pytest.mark.any_engine
@pytest.mark.parametrize(
    ("lines", "chosen"),
    [
        (["[tool.isolator]", 'packages = ["text"]'], ["text"]),
        (['dependencies = ["alpha>=1,<2"]'], ["text"]),
        (["dependencies = [", '  "Alpha",', '  "odd_name.pkg>=0.5",', "]", 'requires-python = ">=3.8"'], ["text"]),
        (['dependencies = ["gamma"]'], ["small"]),
        (["dependencies = [", '  "gamma",', "  'no-such; python_version < \"3.9\"',", "]"], ["small"]),
        (["dependencies = []"], []),
    ],
    ids=["names a set", "one dependency", "several dependencies", "the smallest", "one with a false marker", "none"],
)
async def test_a_block_in_the_program_chooses_its_set(sets, lines, chosen):
    result = await sets.call(block(*lines) + TOLD)
    assert result.structured_content["stdout"] == f"{'text' in chosen}\n", result.content
    assert receipt(result).get("packages", {}).get("sets", []) == chosen
    assert "notes" not in result.structured_content


@pytest.mark.any_engine
@pytest.mark.parametrize(
    ("lines", "notes"),
    [
        (['dependencies = ["alpha>=3"]'], "alpha>=3"),
        (['dependencies = ["alpha", "no-such"]'], "no-such"),
        (['requires-python = ">=3.99"'], "3.99"),
        (["dependencies = ['no-such; sys_platform == \"win32\"']"], "nothing of this is needed"),
        (["dependencies = ["], "TOML"),
    ],
)
async def test_a_block_that_can_not_be_satisfied_is_noted(sets, lines, notes):
    result = await sets.call(block(*lines) + TOLD)
    assert result.structured_content["stdout"] == "False\n", result.content
    assert notes in " ".join(result.structured_content["notes"])


@pytest.mark.any_engine
async def test_white_space_at_the_end_of_a_block_changes_nothing(sets):
    program = block('dependencies = ["gamma"]').replace("# ///\n", "# /// \n") + TOLD
    assert receipt(await sets.call(program))["packages"]["sets"] == ["small"]


@pytest.mark.any_engine
@pytest.mark.parametrize("program", ["import alpha.part", "from odd_name import x"])
async def test_a_failed_import_says_which_set_has_the_module(sets, program):
    message = (await sets.fails(program)).structured_content["message"]
    assert 'call again with packages ["text"]' in message and "nothing can be installed" not in message, message
