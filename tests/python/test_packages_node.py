"""Programs in JavaScript and TypeScript with sets of packages, from a real registry."""

import pytest
from package_sets import used
from session_calls import Tools, opened

COMMON = """
const plain = require("plain");
console.log(plain.version, plain.text, plain.part, require("dual"), require("plain/package.json").name);
import("only-esm").then(({ default: name, part }) => console.log(name, part));
"""

MODULE = """
import plain, { version } from "plain";
import name, { part } from "only-esm";
import dual from "dual";
import { createRequire } from "node:module";
console.log(version, plain.text, name, part, dual, createRequire(import.meta.url)("dual"));
"""

TYPES = """
import plain from "plain";
const version: string = plain.version;
console.log(version);
"""

OWN = [
    {"filename": "node_modules/plain/package.json", "content": '{"name": "plain", "main": "own.js"}'},
    {"filename": "node_modules/plain/own.js", "content": "module.exports = 'own'"},
]


def javascript(sets, code, *packages, **arguments):
    return sets.prints(code, *packages, language="javascript", **arguments)


async def test_the_list_names_the_packages_of_a_set(sets):
    tools = (await sets.are("ready", language="javascript"))["tools"]
    assert tools["packages"] == {"plain": "1.1.0", "only-esm": "1.0.0", "dual": "1.0.0", "@scope/part": "1.0.0"}


async def test_require_finds_the_set(sets):
    result = await sets.call(COMMON, "tools", language="javascript")
    assert result.structured_content["stdout"] == "1.1.0 data of plain part cjs plain\nmodule part\n", result.content
    # None of its files is one that the program has made.
    assert "files" not in result.structured_content


async def test_import_finds_the_set(sets):
    printed = await javascript(sets, MODULE, "tools", entrypoint_filename="main.mjs")
    assert printed == "1.1.0 data of plain module part esm cjs\n"
    # Whether it is a module can be seen only in its code here.
    assert await javascript(sets, MODULE, "tools") == printed


async def test_types_are_no_hindrance(sets):
    assert await javascript(sets, TYPES, "tools", entrypoint_filename="main.ts") == "1.1.0\n"


async def test_the_programs_own_modules_come_first_and_the_images_last(sets):
    assert await javascript(sets, "console.log(require('plain'))", "tools", additional_files=OWN) == "own\n"
    assert await javascript(sets, "console.log(require('lodash'))", "parts") == "of the set\n"
    assert await javascript(sets, "console.log(typeof require('lodash').chunk)", "tools") == "function\n"


async def test_children_have_the_set(sets):
    program = """
    const { execFileSync } = require("node:child_process");
    console.log(execFileSync(process.execPath, ["-p", "require('plain').version"], { encoding: "utf8" }).trim());
    """
    assert await javascript(sets, program, "tools") == "1.1.0\n"


async def test_a_program_sees_no_set_that_it_has_not_asked_for(sets):
    looks = """
    const found = (name) => { try { require.resolve(name); return true } catch { return false } };
    console.log(["plain", "dual", "@scope/part"].map(found).join());
    """
    assert await javascript(sets, looks) == "false,false,false\n"
    assert await javascript(sets, looks, "parts") == "false,false,true\n"
    assert await javascript(sets, looks, "tools") == "true,true,true\n"
    result = await sets.call(looks, "parts", "tools", language="javascript")
    assert result.structured_content["stdout"] == "true,true,true\n", result.content
    assert sorted(used(result)["sets"]) == ["parts", "tools"]


async def test_a_session_has_its_set_to_its_end(sets):
    tools = await Tools.of(sets.client)
    async with opened(tools, "javascript", packages=["tools"]) as session:
        assert await session.value("const plain = require('plain'); plain.version") == "'1.1.0'"
        assert await session.value("(await import('only-esm')).default") == "'module'"
        command = await session.command("node -p \"require('dual')\"")
        assert command["stdout"] == "cjs\n"


@pytest.mark.any_engine
@pytest.mark.parametrize("program", ["require('plain/lib')", "import 'plain'", "await import('only-esm')"])
async def test_a_failed_import_says_which_set_has_the_module(sets, program):
    message = (await sets.fails(program, language="javascript")).structured_content["message"]
    assert 'call again with packages ["tools"]' in message, message
