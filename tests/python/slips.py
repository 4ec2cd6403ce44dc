"""Slips that models make in their calls, and what the server makes of them.

Each is a call of `execute_code` for a program that prints what it was given, unless it says otherwise. It is understood,
with these words in a note or without any note, or it is told in one sentence for a field.
"""

from dataclasses import dataclass, field

# Prints its arguments, a variable, standard input, and the files beside it.
PROGRAM = """\
import os, sys
print(sys.argv[1:], os.environ.get("A"), repr(sys.stdin.read()), sep="|")
for name in sorted(set(os.listdir()) - {"main.py"}):
    print(name, repr(open(name, "rb").read()))
"""
NOTHING = "[]|None|''\n"
PYTHON = {"language": "python", "entrypoint_code": PROGRAM}
PRINT = {"language": "python", "entrypoint_code": "print(1)"}

# A handle that leads to no session. A program that was meant for one must not run without it.
NO_SESSION = "0" * 32
# How a session is named, besides as `session`.
SESSION_NAMES = ["handle", "Session", "session_id", "SESSION_ID", "sessionHandle"]
NAMED_SESSIONS = [*({name: NO_SESSION} for name in SESSION_NAMES), {"session": None, "session_id": NO_SESSION}]


@dataclass
class Slip:
    """A call and what comes of it."""

    what: str
    arguments: dict
    prints: str = NOTHING
    note: str | None = None
    tool: str = "execute_code"
    # What the structured content of another tool has.
    has: dict = field(default_factory=dict)


@dataclass
class Told:
    """A call that could mean several things, or nothing."""

    what: str
    arguments: dict
    field: str
    words: str
    tool: str = "execute_code"


def with_(**more):
    return PYTHON | more


SLIPS = [
    # What is left out.
    Slip(
        "null for everything optional",
        with_(**dict.fromkeys(["args", "env", "stdin", "timeout", "memory_mb", "cpus", "snippet_name"])),
    ),
    Slip(
        "null in a file",
        with_(additional_files=[{"filename": "a", "content": "b", "encoding": None}]),
        NOTHING + "a b'b'\n",
    ),
    Slip(
        "every field filled in, as strict mode wants it",
        with_(
            entrypoint_filename="",
            additional_files=[],
            snippet_name="",
            output_files=[],
            args=[],
            stdin="",
            env=[],
            timeout="",
            memory_mb=64,
            cpus=0.5,
        ),
    ),
    Slip("zero for no limit of one's own", with_(memory_mb=0, cpus=0), note="0 was taken as not given"),
    Slip(
        "an empty program beside a snippet",
        {"language": "python", "entrypoint_code": "", "snippet_name": "greet", "args": ["you"]},
        "hello you\n",
    ),
    # Times and numbers.
    Slip("a timeout as a number", with_(timeout=5), note="timeout: 5 was taken as 5s"),
    Slip("a timeout as a float", with_(timeout=2.5), note="2.5 was taken as 2s 500ms"),
    Slip("a timeout as a number in a string", with_(timeout="5"), note='"5" was taken as 5s'),
    Slip("a timeout with capital letters", with_(timeout="5 Seconds"), note="was taken as 5 seconds"),
    Slip("a timeout in milliseconds", with_(timeout_ms=5000), note="timeout_ms was taken as timeout"),
    Slip("memory as a string", with_(memory_mb="128"), note='"128" was taken as 128'),
    Slip("memory with its unit", with_(memory_mb="128MB"), note='"128MB" was taken as 128'),
    Slip("a float for a whole number", with_(memory_mb=128.0)),
    Slip("a share of a core as a string", with_(cpus="0.5"), note='"0.5" was taken as 0.5'),
    # Lists and objects.
    Slip("one argument without its list", with_(args="-v"), "['-v']|None|''\n", "taken as a list of one"),
    Slip("numbers as arguments", with_(args=[1, 2.5, True]), "['1', '2.5', 'true']|None|''\n", "text that JSON has"),
    Slip("a list in a string", with_(args='["a b", "c"]'), "['a b', 'c']|None|''\n", "the JSON in the string"),
    Slip("variables as an object", with_(env={"A": "1"}), "[]|1|''\n"),
    Slip("a number as a variable", with_(env={"A": 1}), "[]|1|''\n", "text that JSON has"),
    Slip("variables in a string", with_(env='{"A": "1"}'), "[]|1|''\n", "the JSON in the string"),
    Slip("a number as standard input", with_(stdin=42), "[]|None|'42'\n", "taken as text"),
    Slip("one pattern without its list", with_(output_files="*.csv"), note="taken as a list of one"),
    # Files.
    Slip(
        "one file without its list",
        with_(additional_files={"filename": "a", "content": "b"}),
        NOTHING + "a b'b'\n",
        "a list of one file",
    ),
    Slip(
        "names and contents of files",
        with_(additional_files={"a": "b", "c": "d"}),
        NOTHING + "a b'b'\nc b'd'\n",
        "names and contents of files",
    ),
    Slip(
        "other names for the parts of a file",
        with_(files=[{"path": "a", "text": "b"}]),
        NOTHING + "a b'b'\n",
        "additional_files[].path was taken as filename",
    ),
    Slip(
        "a file by its whole path",
        with_(additional_files=[{"filename": "/workspace//a", "content": "b"}]),
        NOTHING + "a b'b'\n",
    ),
    Slip("the program by its whole path", with_(entrypoint_filename="/workspace/main.py")),
    Slip(
        "an object as the content of a JSON file",
        with_(additional_files=[{"filename": "a.json", "content": {"b": 1}}]),
        NOTHING + "a.json b'{\"b\":1}'\n",
        "written to the file as JSON",
    ),
    Slip(
        "base64 in lines and without padding",
        with_(additional_files=[{"filename": "a", "content": "YWJj\nZGU", "encoding": "BASE64"}]),
        NOTHING + "a b'abcde'\n",
    ),
    # Languages.
    Slip("a language in capital letters", with_(language="Python")),
    Slip("a language with its version", with_(language="Python 3.12")),
    Slip("a language by its short name", with_(language="py"), note='"py" was taken as python'),
    Slip("no language, but a file name", {"code": PROGRAM, "filename": "main.py"}, note="from the name of the file"),
    Slip("node", {"language": "node", "code": "console.log(1)"}, "1\n", '"node" was taken as javascript'),
    Slip(
        "TypeScript",
        {"language": "typescript", "code": "const a: number = 1; console.log(a)"},
        "1\n",
        "the program was run as main.ts",
    ),
    # Names of arguments, and what is around them.
    Slip("code", {"language": "python", "code": "print(1)"}, "1\n", "code was taken as entrypoint_code"),
    Slip("names in camel case", {"language": "python", "entrypointCode": "print(1)"}, "1\n", "entrypointCode was taken"),
    Slip("arguments in another object", {"input": PRINT}, "1\n", "the arguments were taken from input"),
    Slip(
        "code in Markdown",
        {"language": "python", "entrypoint_code": "```python\nprint(1)\n```"},
        "1\n",
        "the lines with ``` around",
    ),
    Slip(
        "a fence inside of the code, and words around it",
        {
            "language": "python",
            "code": "Here's the code:\n````python {1}\nprint('```')\nprint(\"\"\"\n```\n\"\"\")\n````\nIt prints fences.",
        },
        "```\n\n```\n\n",
        ", and everything outside of them",
    ),
    Slip("no last fence, after a byte order mark", {"code": "\ufeff~~~js\nconsole.log(1)\n"}, "1\n", "from ~~~js"),
    Slip(
        "a block for a shell before the program",
        {"language": "python", "code": "```bash\npip install x\n```\n\n```python\nprint(1)\n```"},
        "1\n",
        ", and everything outside of them",
    ),
    Slip(
        "what is written as Markdown by a program",
        {"language": "python", "entrypoint_code": "print(\"\"\"# A\n```python\nx\n```\n\"\"\")"},
        "# A\n```python\nx\n```\n\n",
    ),
    Slip("code in Markdown that tells the language", {"code": "```py\nprint(1)\n```"}, "1\n", "from ```py"),
    # The other tools.
    Slip(
        "two blocks in check_syntax",
        {"language": "python", "code": "```python\nx\n```\n```python\ny\n```"},
        note="lines with ```, the fences of Markdown",
        tool="check_syntax",
        has={"valid": False},
    ),
    Slip(
        "a command of notebooks in test_code",
        {"code": "import x\n%pip install y"},
        note="line 2, \"%pip install y\", is a command for a shell",
        tool="test_code",
        has={"valid": False},
    ),
    Slip(
        "entrypoint_code in check_syntax",
        {"language": "PY", "entrypoint_code": "print("},
        note="entrypoint_code was taken as code",
        tool="check_syntax",
        has={"valid": False, "line": 1},
    ),
    Slip(
        "everything in test_code",
        {"language": "python3", "entrypoint_code": "print(1)", "timeout": "5", "memory_mb": "64"},
        note='"5" was taken as 5s',
        tool="test_code",
        has={"stdout": "1\n", "exit_code": 0},
    ),
]

TOLD = [
    Told("arguments in one string", with_(args="-n 5"), "args", 'give a list of strings, such as ["-n", "5"]'),
    Told("a list in Python's notation", with_(args="['a']"), "args", "give a list of strings"),
    Told("two names for one thing", with_(code="print(1)"), "entrypoint_code", "give it once, as entrypoint_code"),
    Told("a letter too few", {"language": "python", "entrypoint_cod": ""}, "entrypoint_cod", "`entrypoint_code`?"),
    Told("memory in no unit", with_(memory=64), "memory", "did you mean `memory_mb`?"),
    Told("what is nowhere", with_(notebook="a.ipynb"), "notebook", "there is no such argument; there are: session, language, "),
    Told("packages without sets", with_(packages=["numpy"]), "packages", "there are no sets for python"),
    Told("milliseconds for seconds", with_(timeout=5000), "timeout", "(timeout: 5000 was taken as 1h 23m 20s)"),
    Told("a time in words", with_(timeout="five minutes"), "timeout", 'such as "500ms", "5s" or "2m"'),
    Told("months", with_(timeout="5M"), "timeout", '"5M" is not a duration: write m for minutes'),
    Told("no limit", with_(memory_mb=-1), "memory_mb", "give a whole number of MiB, such as 256"),
    Told("gigabytes", with_(memory_mb="1GB"), "memory_mb", "give a whole number of MiB"),
    *(
        Told("a file elsewhere", with_(additional_files=[{"filename": name, "content": ""}]), "additional_files[0].filename", words)
        for name, words in [("/mnt/data/a", "is absolute"), ("/workspace2/a", "is absolute"), ("/workspace/../a", 'contains ".."')]
    ),
    Told("a file by its name alone", with_(additional_files=["a.csv"]), "additional_files[0]", "filename and content"),
    Told(
        "no content",
        with_(additional_files=[{"filename": "a"}]),
        "additional_files[0].content",
        "every file has a filename and content",
    ),
    Told(
        "an encoding of text",
        with_(additional_files=[{"filename": "a", "content": "", "encoding": "latin-1"}]),
        "additional_files[0].encoding",
        "use utf-8 for text, or base64 for binary files",
    ),
    Told("no language at all", {"code": "print(1)"}, "language", "one of go, javascript, python"),
    Told("Python 2", with_(language="python2"), "language", "use one of go, javascript, python"),
    Told(
        "one language around the code and another beside it",
        {"language": "python", "code": "```js\n1\n```"},
        "entrypoint_code",
        "is written in ```js, but language is python",
    ),
    Told(
        "a whole notebook",
        {"language": "python", "code": '{"cells": [{"cell_type": "code", "source": "x"}], "nbformat": 4}'},
        "entrypoint_code",
        "one code cell",
    ),
    Told("code as a list of lines", {"language": "python", "code": ["a", "b"]}, "entrypoint_code", "as a string"),
    Told("nothing", {}, "entrypoint_code", "there is nothing to run"),
    *(
        Told(f"a session in {', '.join(named)}", with_(**named), "session", "there is no session")
        for named in NAMED_SESSIONS
    ),
    Told("arguments of a session in another object", {"input": with_(handle=NO_SESSION)}, "session", "there is no session"),
    Told("no handle", {"handle": ""}, "handle", "the handle that execute_code returned", "get_result"),
    Told(
        "TypeScript in check_syntax",
        {"language": "ts", "code": "let a: number"},
        "language",
        "can be run with execute_code",
        "check_syntax",
    ),
    Told(
        "another language in test_code",
        {"language": "go", "code": "package main"},
        "language",
        "use execute_code",
        "test_code",
    ),
]
