"""Syntax of notebooks that is not Python: `!command`, `%magic`, `%%magic` for a whole cell, `name?`, a cell that is indented as a
whole, and one with the prompts of Python.

Only a cell that Python can't compile is looked at, and in it only the lines where the compiler stops. Each becomes a call of a
builtin that this file adds.
"""

import builtins

_CALL = "__notebook__"
# Magics that are known without `%` too.
_BARE = {"time", "timeit", "cd", "ls", "run", "pip", "conda", "mamba", "uv", "matplotlib", "load_ext"}
_MOST_LINES = 1000

_magics = load("magics")


def parse(session, source, name, failure, compile_tree):
    """Returns the tree of a cell, the text that it belongs to, and None or a function to call before it, which returns one to
    call at its end. Raises a SyntaxError if it is no notebook's cell either."""
    magics = _magics["Magics"](session)
    lines = source.split("\n")
    if _remove_margin(lines):
        session.set_source(name, "\n".join(lines))
        failure = None
    first = _first_code(lines, 0)
    begins = []
    while lines[first].startswith("%%"):
        magic, _, rest = lines[first][2:].strip().partition(" ")
        if magic not in _magics["AROUND"]:
            setattr(builtins, _CALL, magics.call)
            body = "\n".join(lines[first + 1 :])
            text = "\n" * first + "%s(%r, %r, %r)" % (_CALL, "%%" + magic, rest.strip(), body)
            return compile_tree(text, name), text, _together(begins)
        begins.append(magics.around(magic, rest))
        lines[first] = ""
        first = _first_code(lines, first)
    changed = set()
    while True:
        text = "\n".join(lines)
        try:
            tree = compile_tree(text, name)
        except SyntaxError as error:
            at = _next_idiom(lines, error, changed)
            if at is None or len(changed) > _MOST_LINES:
                # An error of the cell's own, not one in what a line has become.
                is_own = changed and not (error.lineno and error.lineno - 1 in changed)
                raise (error if is_own or failure is None else failure) from None
            changed.add(at)
            _change(lines, at)
        else:
            setattr(builtins, _CALL, magics.call)
            return tree, text, _together(begins)


def _first_code(lines, at):
    """The first line from there on that is neither empty nor a comment, or the last of all."""
    while at + 1 < len(lines) and (not lines[at].strip() or lines[at].lstrip().startswith("#")):
        at += 1
    return at


def _remove_margin(lines):
    """Removes what was copied along: an indentation, or prompts. Returns whether there was any."""
    re = library("re")
    first = lines[_first_code(lines, 0)]
    margin = re.match(r"[ \t]+(?=\S)|>>> |", first)[0]
    if not margin:
        return False
    pattern = r"(?:>>>|\.\.\.)(?: |$)" if margin == ">>> " else margin
    lines[:] = [re.sub("^" + pattern, "", line) for line in lines]
    return True


def _together(begins):
    def begin():
        ends = [begin() for begin in begins]

        def end():
            for end in reversed(ends):
                end()

        return end

    return begin if begins else None


def _next_idiom(lines, error, changed):
    """The line of an idiom at which the compiler has stopped. What is wrong there can make it stop later."""
    stop = min(error.lineno or len(lines), len(lines)) - 1
    if stop not in changed and not _matches(lines[stop]) and _is_bare(lines[stop]):
        lines[stop] = library("re").sub(r"^(\s*)", r"\1%", lines[stop])
        return stop
    return next((at for at in range(stop, -1, -1) if at not in changed and _matches(lines[at])), None)


def _matches(line):
    re = library("re")
    text = line.strip()
    return (
        re.match(r"[!%](?![=%])\S|!!", text)
        or re.match(r"[\w.,\s\[\]*()'\"]+=\s*[!%](?!=)\S", text)
        or re.fullmatch(r"\?{1,2}[\w.%]+|[\w.%\[\]'\"]+\?{1,2}", text)
    )


def _is_bare(line):
    match = library("re").match(r"\s*(\w+)\s+(?:-\w|[\w'\"(\[{~./])", line)
    return match and match[1] in _BARE


def _change(lines, at):
    re = library("re")
    line, last = lines[at], at
    while line.endswith("\\") and last + 1 < len(lines):
        last += 1
        line = line[:-1] + lines[last]
        lines[last] = ""
    indent, text = re.match(r"(\s*)(.*)", line, re.DOTALL).groups()
    text = text.rstrip()
    if text.endswith("?") and text[0] not in "!%" or text.startswith("?"):
        kind = "??" if "??" in text else "?"
        lines[at] = "%s%s(%r, %r)" % (indent, _CALL, kind, text.strip("?"))
        return
    target, mark, rest = re.match(r"([^!%]*?=\s*)?(!!|[!%])\s*(.*)", text, re.DOTALL).groups()
    is_value = target is not None or mark == "!!"
    if mark == "%":
        magic, _, rest = rest.partition(" ")
        call = "%s(%r, %r)" % (_CALL, "%" + magic, rest.strip())
    else:
        call = "%s(%r, %r)" % (_CALL, "!!" if is_value else "!", rest)
    lines[at] = indent + (target or "") + call
