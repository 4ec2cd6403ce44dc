"""The output of a notebook's cell, and the differences of two such outputs.

Some things can't be equal: addresses, times, paths of temporary files, versions, warnings. They are made alike before. What
differs then is of a kind:

    layout      the same text, with other blanks and line ends
    rounding    the same text, with numbers that differ behind their third figure
    picture     pictures of another size
    other       anything else, which somebody has to look at
"""

import base64
import re
import struct
from itertools import zip_longest
from typing import NamedTuple

LAYOUT, ROUNDING, PICTURE, OTHER = "layout", "rounding", "picture", "other"

# Each is replaced, in this order.
_ALIKE = [
    (r"\r\n?", "\n"),
    # Colours.
    (r"\x1b\[[0-9;]*m", ""),
    (r"\b0x[0-9a-fA-F]{4,}", "ADDRESS"),
    # IPython leaves this word out, and plain Python does not.
    (r" object at ADDRESS", " at ADDRESS"),
    (r"<(?:ipython-input-[^>]+|cell \d+)>|(?:In|Cell In) ?\[\d+\]", "CELL"),
    (r"(?:/tmp|/var/folders|/var/tmp)/[\w./+-]+", "TEMPORARY"),
    (r"[^\s\"']*/(?:site|dist)-packages/", ""),
    (r"(?m)^.*(?:\bper loop\b|^CPU times:|^Wall time:|^Compiler +:|^Parser +:|slowest run took).*$", "TIMES"),
    (r"\b\d+(?:\.\d+)? ?(?:[mnuµμ]?s|min|seconds|msec|usec)\b", "TIME"),
    # What statsmodels prints with each summary.
    (r"\b\w{3}, \d\d \w{3} \d{4}\b", "DATE"),
    (r"\b\d\d:\d\d:\d\d\b(?=\s+(?:Log-Likelihood|Scale|Pearson|AIC|BIC|LL-Null|Df|No\.)|\s*$)", "TIME"),
    (r"\b\d+\.\d+\.\d+(?:\.?\w+)*\b", "VERSION"),
    # NumPy 2 says what a number is.
    (r"\bnp\.(?:u?int|float|complex)\d*\(([^()]*)\)", r"\1"),
    (r"\bnp\.(True|False)_", r"\1"),
    (r"\bnp\.str_\(('[^']*')\)", r"\1"),
    (r"(?m)[ \t]+$", ""),
]
_ALIKE = [(re.compile(pattern), replacement) for pattern, replacement in _ALIKE]

# A warning, and the line of code below it.
_WARNING = re.compile(r"(?m)^.*\b\w*Warning\b:?.*\n?(?:^[ \t]+\S.*\n?)*")

# What tells nothing of a table. Browsers show the rest.
_HTML_ALIKE = [
    (r"(?is)<(style|script)\b.*?</\1>", ""),
    (r"(?s)<!--.*?-->", ""),
    (r"(?s)<(/?\w+)[^>]*>", r"<\1>"),
    (r"</?(?:div|p|span)>", ""),
    (r"\s+", " "),
    (r" ?(</?\w+>) ?", r"\1"),
]
_HTML_ALIKE = [(re.compile(pattern), replacement) for pattern, replacement in _HTML_ALIKE]

_NUMBER = re.compile(r"\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+")
# A figure's own words, where there is its picture.
_FIGURE = re.compile(r"<(?:Figure|matplotlib\.figure\.Figure|seaborn\.axisgrid\.\w+)\b[^>]*>")

# A picture of a chart is as large as the figure's defaults and its labels make it.
_SIZES_APART = 2


class Outputs(NamedTuple):
    """The output of a cell."""

    stdout: str
    stderr: str
    # Values and displays: each as text, and as HTML if it has that.
    values: list
    # Width and height of each.
    pictures: list
    # The name of the exception that ended the cell.
    error: str | None


class Difference(NamedTuple):
    kind: str
    what: str
    stored: str
    found: str

    def __str__(self):
        return f"{self.kind}, {self.what}: - {self.stored}\n{' ' * 4}+ {self.found}"


def of_notebook(outputs):
    """The outputs that a notebook has of a cell, or a kernel of Jupyter sends."""
    streams = {"stdout": "", "stderr": ""}
    values, pictures, error = [], [], None
    for output in outputs:
        kind = output["output_type"]
        if kind == "stream":
            streams[output["name"]] += _joined(output["text"])
        elif kind == "error":
            error = output["ename"].rpartition(".")[2]
        else:
            forms = {name: _joined(form) for name, form in output["data"].items() if isinstance(form, (str, list))}
            picture = next((forms[name] for name in ("image/png", "image/jpeg") if name in forms), None)
            if picture is not None:
                pictures.append(size(base64.b64decode(picture)))
            _take(values, forms, picture is not None)
    return Outputs(streams["stdout"], streams["stderr"], values, pictures, error)


def of_answer(answer):
    """The outputs of a cell in a session."""
    values = []
    for shown in answer.shown:
        forms = {"text/plain": shown.get("text"), "text/html": shown.get("html")}
        is_picture = any(name in ("image/png", "image/jpeg") for name in shown["media_types"])
        _take(values, {name: form for name, form in forms.items() if form is not None}, is_picture)
    return Outputs(answer.stdout, answer.stderr, values, [size(picture) for picture in answer.pictures], answer.error)


def _take(values, forms, is_picture):
    text = forms.get("text/plain", "")
    if not is_picture and not _FIGURE.fullmatch(text.strip()) and ("text/plain" in forms or "text/html" in forms):
        values.append((text, forms.get("text/html")))


def _joined(text):
    return text if isinstance(text, str) else "".join(text)


def size(picture):
    """Width and height of a PNG, and of another picture nothing."""
    if picture[:8] == b"\x89PNG\r\n\x1a\n":
        return struct.unpack(">II", picture[16:24])
    return None


def alike(text):
    """A text without what can't be equal."""
    for pattern, replacement in _ALIKE:
        text = pattern.sub(replacement, text)
    return text.strip("\n")


def _alike_html(text):
    for pattern, replacement in _HTML_ALIKE:
        text = pattern.sub(replacement, text)
    return alike(text.strip())


def differences(stored, found):
    """How the outputs of a cell differ from the stored ones, the errors aside."""
    both = [("standard output", alike(stored.stdout), alike(found.stdout))]
    # Python prints a traceback there, and Jupyter does not.
    if stored.error is None and found.error is None:
        both.append(("standard error", *(alike(_WARNING.sub("", outputs.stderr)) for outputs in (stored, found))))
    for at, (one, other) in enumerate(zip_longest(stored.values, found.values), 1):
        if one is None or other is None:
            both.append((f"value {at}", *("nothing" if value is None else alike(value[0]) for value in (one, other))))
        elif one[1] and other[1]:
            both.append((f"value {at} as HTML", _alike_html(one[1]), _alike_html(other[1])))
        else:
            both.append((f"value {at}", alike(one[0]), alike(other[0])))
    told = [Difference(kind, what, *_first(kind, one, other)) for what, one, other in both if (kind := _kind(one, other))]
    return told + list(_pictures(stored.pictures, found.pictures))


def _kind(one, other):
    """Of which kind a difference is; None if there is none."""
    if one == other:
        return None
    if _dense(one) == _dense(other):
        return LAYOUT
    return ROUNDING if _dense(_rounded(one)) == _dense(_rounded(other)) else OTHER


def _dense(text):
    return re.sub(r"\s+", "", text)


def _rounded(text):
    return _NUMBER.sub(lambda number: f"{float(number[0]):.3g}", text)


def _first(kind, one, other):
    """The first lines that differ in this way."""
    # A table is a single line.
    lines = [re.sub(r"(</tr>|</th>)", r"\1\n", text).splitlines() for text in (one, other)]
    pairs = [(a[:200], b[:200]) for a, b in zip_longest(*lines, fillvalue="") if a != b]
    return next((pair for pair in pairs if _kind(*pair) == kind), (pairs or [("", "")])[0])


def _pictures(stored, found):
    if len(stored) != len(found):
        yield Difference(OTHER, "pictures", str(len(stored)), str(len(found)))
    for at, (one, other) in enumerate(zip(stored, found), 1):
        if one and other and any(max(a, b) > _SIZES_APART * min(a, b) for a, b in zip(one, other)):
            yield Difference(PICTURE, f"picture {at}", "{}x{}".format(*one), "{}x{}".format(*other))
