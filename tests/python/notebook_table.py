"""The table of inputs that a kernel of Jupyter and a session get alike, in tests/notebook, and the comparison of the outcomes.

`inputs.txt` has the inputs, with a reason for each whose outcomes differ. `recorded.json` has the outcomes in a kernel of Jupyter,
which `beside_notebook.py --record` writes.

Some things are the same in another way, and are no difference: a page of the pager is printed. Errors are printed, too. Forms of
values that no answer of a session has are left out. A session shows a readable text where IPython's only says the type.
"""

import base64
import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from notebook_outputs import alike, size

FOLDER = Path(__file__).parents[1] / "notebook"
INPUTS, RECORDED = FOLDER / "inputs.txt", FOLDER / "recorded.json"

_SECTION, _CELL = "=== ", "---"
_FORMS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "application/json": "json",
    "image/svg+xml": "svg",
}
_PICTURES = ("image/png", "image/jpeg")
# An error whose text does not begin with its name.
_UNNAMED = "?"

# Of longer texts the table has only a digest.
_LONGEST = 3000
_ONLY_TYPE = re.compile(r"<[\w.<>]+(?: object)?(?: at (?:0x[0-9a-fA-F]+|ADDRESS))?>")

# The names of cells in tracebacks of Python and in warnings.
_CELL_NAMES = re.compile(r"/tmp/ipykernel_\d+/\d+\.py|[^\s\"'(]*(?:<|&lt;)ipython-input-[\w-]+(?:>|&gt;)")

# What differs from run to run in these inputs.
_VARIES = [
    (re.compile(r"(?m)^.*RuntimeWarning: coroutine .*\n.*\n|^RuntimeWarning: Enable tracemalloc.*$"), ""),
    (re.compile(r"\b[A-Z][a-z]{2} [ \d]\d \d\d:\d\d\b"), "DATE"),
    (re.compile(r"(?: object)? at 7f[0-9a-f]{10}\b"), " at ADDRESS"),
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (re.compile(r"\bT_[0-9a-f]{5}(?=_|\b)"), "T_UNIQUE"),
    (re.compile(r"(?s)<\?xml.*<!-- Created with matplotlib.*|<\?xml.*matplotlib.*"), "a drawing of matplotlib"),
    (re.compile(r"(?:\bTIMES\n)+TIMES\b"), "TIMES"),
    (re.compile(r"(?m)^Repeat: .*$|^.* function calls? .*$|^.*\d+ +\d\.\d{3}.*$"), "TIMES"),
    (re.compile(r"/(?:tmp|workspace)(?=\b)(?:/[\w.+-]+)*"), "TEMPORARY"),
    (re.compile(r"\b(?:Thread|Task|Process)-\d+"), "NUMBERED"),
    (re.compile(r"(?<=\w)_[0-9a-f]{32}\b|\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b|\b[0-9a-f]{32}\b"), "UNIQUE"),
]


@dataclass
class Input:
    """A cell of the table."""

    section: str
    # In the file.
    line: int
    # In its section.
    number: int
    code: str
    # Why its outcomes differ, if they do.
    reason: str | None


@dataclass
class Outcome:
    """What became of an input."""

    out: str = ""
    err: str = ""
    # The forms of each thing that was shown, as texts. A picture has its size.
    shown: list = field(default_factory=list)
    # The name of the exception.
    error: str | None = None
    # A text that is put into the next cell.
    next: str | None = None


def inputs():
    """The table by its sections."""
    found, section, lines = {}, None, None
    for at, line in enumerate(INPUTS.read_text(encoding="utf-8").split("\n"), 1):
        if line.startswith(_SECTION):
            section, lines = found.setdefault(line.removeprefix(_SECTION), []), None
            name = line.removeprefix(_SECTION)
        elif section is not None and re.match(rf"{_CELL}($| )", line):
            lines = []
            section.append(Input(name, at, len(section) + 1, lines, line.removeprefix(_CELL).strip() or None))
        elif lines is not None:
            lines.append(line)
    for cells in found.values():
        for cell in cells:
            # An empty line separates sections.
            while cell.code and cell.code[-1] == "":
                cell.code.pop()
            cell.code = "\n".join(cell.code)
    return found


def recorded():
    """The outcomes of a kernel of Jupyter, by section."""
    return {name: [Outcome(**one) for one in cells] for name, cells in json.loads(RECORDED.read_text(encoding="utf-8")).items()}


def record(outcomes):
    """Writes the outcomes of a kernel of Jupyter, without what varies."""
    told = {}
    for name, cells in outcomes.items():
        told[name] = []
        for one in cells:
            one.out, one.err = _alike(one.out), _alike(one.err)
            one.shown = [{kind: _alike(form) for kind, form in forms.items()} for forms in one.shown]
            told[name].append({key: value for key, value in asdict(one).items() if value})
    RECORDED.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def of_jupyter(answer):
    """The outcome in a kernel of Jupyter. What it shows as an error although it goes on is printed."""
    found = Outcome(error=answer["error"] and answer["error"].rpartition(".")[2])
    streams = {"stdout": [], "stderr": []}
    for output in answer["outputs"]:
        kind = output["output_type"]
        if kind == "stream":
            streams[output["name"]].append(output["text"])
        elif kind == "error":
            streams["stderr"].append("\n".join(output["traceback"]) + "\n")
        else:
            found.shown.append(_forms(output["data"]))
    for payload in answer["payload"]:
        if payload["source"] == "page":
            streams["stdout"].append(payload["data"].get("text/plain", ""))
        elif payload["source"] == "set_next_input":
            found.next = payload["text"]
    found.out, found.err = ("".join(texts) for texts in streams.values())
    return found


def of_session(answer):
    """The outcome in a session."""
    failed = answer.error or (_UNNAMED if answer.status == "error" else None)
    found = Outcome(answer.stdout, answer.stderr, error=failed)
    pictures = iter(answer.pictures)
    for shown in answer.shown:
        forms = {name: shown[name] for name in _FORMS.values() if name in shown}
        found.shown.append(forms | {kind: _size(next(pictures, b"")) for kind in _PICTURES if kind in shown["media_types"]})
    if answer.status not in ("success", "error"):
        found.error = answer.status
    return found


def of_kernel(cell):
    """The outcome in the kernel of a session, without a sandbox."""
    shown = [_forms({kind: form.decode() if kind in _FORMS else form for kind, form in forms.items()}) for forms in cell.order]
    name = re.split(r"[:\s]", cell.error)[0].rpartition(".")[2] if cell.error and cell.code else None
    return Outcome(cell.out, cell.err, shown, name)


def _forms(data):
    """The forms of a thing that an answer of a session can have."""
    found = {_FORMS[kind]: form if isinstance(form, str) else json.dumps(form) for kind, form in data.items() if kind in _FORMS}
    for kind in _PICTURES:
        if kind in data:
            content = data[kind]
            found[kind] = _size(base64.b64decode(content) if isinstance(content, str) else content)
    return found


def _size(picture):
    return "x".join(map(str, size(picture) or ["?"]))


def differences(theirs, ours):
    """How the outcome in a session differs, one text for each kind."""
    told = []
    for name in ("out", "err"):
        one, other = (_alike(getattr(outcome, name)) for outcome in (theirs, ours))
        if one != other:
            told.append(f"{name}: {one!r} {other!r}")
    shown = [_comparable(*pair) for pair in _pairs(theirs.shown, ours.shown)]
    if shown[0] != shown[1]:
        told.append(f"shown: {shown[0]} {shown[1]}")
    for name in ("error", "next"):
        one, other = getattr(theirs, name), getattr(ours, name)
        if one != other and (one is None or other != _UNNAMED):
            told.append(f"{name}: {one!r} {other!r}")
    return told


def _pairs(theirs, ours):
    """Both, each next to the other."""
    # A display without forms has nothing to compare.
    theirs, ours = ([forms for forms in shown if any(forms.values())] for shown in (theirs, ours))
    most = max(len(theirs), len(ours))
    theirs, ours = (shown + [{}] * (most - len(shown)) for shown in (theirs, ours))
    return [(theirs, ours), (ours, theirs)]


def _comparable(things, others):
    """What is compared of things that were shown, next to those that the other has shown."""
    found = []
    for forms, other in zip(things, others):
        texts = {name: _alike(form) for name, form in forms.items() if name not in _PICTURES and form}
        texts |= {"picture": True for kind in _PICTURES if kind in forms}
        if any(_ONLY_TYPE.fullmatch(one.get("text", "")) for one in (forms, other)) and len(texts) > 1:
            texts.pop("text", None)
        found += [texts] if texts else []
    return found


def _alike(text):
    text = alike(_CELL_NAMES.sub("<cell 0>", text))
    for pattern, replacement in _VARIES:
        text = pattern.sub(replacement, text)
    text = "\n".join(line for line in text.split("\n") if line.strip())
    if len(text) > _LONGEST:
        text = f"{text[:100]} ... {hashlib.sha256(text.encode()).hexdigest()}"
    return text
