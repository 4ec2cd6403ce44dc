"""The tool check_syntax, compared with running the same programs."""

import re

import anyio
import pytest

# Programs that get past the syntax, each of which ends at once.
VALID = {
    "javascript": [
        "#!/usr/bin/env node\nlet a",
        "return 5",
        "with ({}) {}",
        "let await = 1",
        "<!-- a\nlet a",
        "async function f() { for await (const x of []) {} }",
        "import fs from 'fs'; console.log(typeof fs)",
        "export const a = 1",
        "console.log(import.meta.url)",
        "const a = await 1",
        "await 1; await 2",
        "console.log(await f()); async function f() { return 1 }",
        "const a = 1; console.log([await a])",
        "const x = 1; console.log(!await x)",
        "const f = (...a) => a, y = [1]; f(...await y)",
        "const y = [1]; for (const x of await y) console.log(x)",
        "const z = false; while (await z);",
        "if (await 0) console.log(1)",
        "console.log((await import('fs')).existsSync('/'))",
        "for await (const x of [1]) console.log(x)",
        "console.log(await f()) // a comment at the end\nfunction f() {}",
        "if (typeof await) {}\nvar await",
        "#!/usr/bin/env node\nconst a = await 1",
        "try { await Promise.reject(1) } catch {}",
        "const require = 1",
        "import { createRequire } from 'module'; const require = createRequire(import.meta.url)",
        "const __dirname = import.meta.dirname",
        "let a = 1 // await",
        "class A { static { this.b = 1 } #c = 2 }",
        "nothing.here",
    ],
    "go": [
        "package main\nfunc main() {}",
        "package main\nfunc main() { x := undefined }",
        "package main\nimport \"os\"\nfunc main() {}",
        "package main\nfunc main() { var x int = \"a\" }",
        "package main\nfunc main() { for { break } }",
        "package main\nfunc f[T any](t T) T { return t }\nfunc main() { for range 3 { f(1) } }",
        "package main\nfunc main() { x: for { break x } }",
        "package main\nfunc main() { x: for { if true { break }; continue x } }",
        "package other",
    ],
    "python": [
        "print('hi')",
        "raise SystemExit(3)",
        "import nowhere",
        "match 1:\n    case [1, *_]: pass",
        "x = lambda: (yield)",
        "async def f(): await g()",
        "print(f'{1!r:>{5}}')",
        "# -*- coding: latin-1 -*-\nx = 'a'",
        "undefined",
    ],
}

# Programs that don't.
INVALID = {
    "javascript": [
        "let a = (",
        "console.log('a'",
        "f(1 2)",
        "let a;\n\nlet a",
        "console.log(`${await 1}`)",
        "const a = await 1; return 5",
        "const a = await 1; with ({}) {}",
        "const a = await 1; import.meta.url; {",
        "const __dirname = 1; return 5",
        "function f() { await 1 }",
        "console.log(await f()); return 5",
        "console.log(await f()); let a = = 1",
        "import 'fs';\nlet b = = 2",
        "export const a = 1; return 5",
        "export const a = 1; with ({}) {}",
        "const a = await 1;\nconst a = 2",
        "let s = 'a\nb'",
        "class A { #a; #a }",
        "'use strict'; with ({}) {}",
        "}",
        "let a = 08n",
        "enum A {}",
        "let a: number = 1",
        "import a from",
        "export { nothing }",
        "await 1; let await",
        "new.target; import 'fs'",
        "for (const x of await y",
        "const require = 1; let require",
    ],
    "go": [
        "x := 1",
        "package main\nimport fmt\nfunc main() {}",
        "package main\nimport \"fmt\nfunc main() {}",
        "package main\n\nfunc main() {\n\tprintln(1\n}",
        "package main\nfunc main() { if true }",
        "package main\nfunc main() {\n\tx = = 1\n}",
        "package main\nfunc main()\n{\n}",
        "package main\nfunc main() { 'ab' }",
        "package main\nfunc main() { println(09) }",
        "package main\nfunc main() { println(\"a\n\") }",
        "package main\nfunc main() { @ }",
        "package main\nfunc main() { break }",
        "package main\nfunc main() {\n\tgoto x\n}",
        "package main\nfunc main() { x: }",
        "package main\nfunc main() { for i := 0; i < 3 { } }",
        "package main\nvar x int := 1",
        "package main\nx := 1",
        "package main\nfunc main() { a := []int{1, 2\n} }",
        "package main\nfunc main() { else {} }",
        "package main\nfunc main() {",
        "package main\nfunc main() { fallthrough }",
        "package main\nfunc main() { if true { continue } }",
        "package main\nfunc main() {\n\tfor { break x }\n}",
        "package main\nimport \"os\"\nvar a = 1\nimport \"io\"\nfunc main() {}",
    ],
    "python": [
        "print(",
        "a = 1\n    b = 2",
        "return 1",
        "if 1:\n\tx\n        y",
        "x = 1\nfor",
        "print 'a'",
        "f(a=1, 2)",
        "await 1",
        "'a' = 1",
        "break",
        "def f(a, a): pass",
        "nonlocal x",
        "from __future__ import nothing",
        "x = 'abc",
        "x = 0777",
    ],
}

# How an interpreter or compiler says where an error of syntax is, and what.
SAID = {
    "javascript": r"main\.js:(?P<line>\d+)\n(?:.*\n)*?SyntaxError: (?P<error>.*)\n(?:.*\n)*\nNode",
    "go": r"(?m)^(?:\./)?main\.go:(?P<line>\d+):\d+: (?P<error>.*)$",
    "python": r"line (?P<line>\d+)\n(?: .*\n)*(?:Syntax|Indentation|Tab)Error: (?P<error>.*)\n\Z",
}


# More than one, so that sandboxes are made while others run.
AT_ONCE = 4


async def check_and_run(server, language, programs):
    """The check and the outcome of each program."""
    found = {}
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def one(code):
        async with limit:
            checked = await server.client.call_tool("check_syntax", {"language": language, "code": code})
            ran = await server.call(language=language, entrypoint_code=code)
            assert checked.structured_content, checked.content
            found[code] = checked.structured_content, ran.structured_content

    async with anyio.create_task_group() as tasks:
        for code in programs:
            tasks.start_soon(one, code)
    return found


@pytest.mark.any_engine
@pytest.mark.parametrize("language", SAID)
async def test_valid_programs_pass_the_check(server, language):
    for code, (checked, ran) in (await check_and_run(server, language, VALID[language])).items():
        assert checked == {"valid": True}, f"{code!r}: {checked}"
        assert not re.search("SyntaxError|syntax error|expected '", ran["stderr"]), f"{code!r}: {ran['stderr']}"


@pytest.mark.any_engine
@pytest.mark.parametrize("language", SAID)
async def test_invalid_programs_get_the_error_of_their_own_tools(server, language):
    for code, (checked, ran) in (await check_and_run(server, language, INVALID[language])).items():
        said = re.search(SAID[language], ran["stderr"])
        assert said, f"{code!r}: {ran['stderr']}"
        expected = (False, said["error"], int(said["line"]))
        assert (checked["valid"], checked["error"], checked["line"]) == expected, f"{code!r}: {checked}"
