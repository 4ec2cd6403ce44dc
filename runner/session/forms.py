"""The forms in which something is shown: text, and HTML or pictures if the object has them."""

import sys

_LONGEST_TEXT, _LONGEST_HTML, _LONGEST = 64 << 10, 512 << 10, 4 << 20
# Of HTML without a text, and of drawings.
_LONGEST_SOURCE = 4 << 10
# The methods of an object that return its forms, in the order of a bundle.
_METHODS = [
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
]
_KINDS = {"text/plain", *(kind for kind, _ in _METHODS)}
_PICTURES = {"image/png", "image/jpeg"}
_PLAIN = {int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset, type, type(None)}

_LINE, _NARROWEST = 79, 20
# The width of a text with line breaks, which fits into no line.
_NEVER = 1 << 20
_MOST_ENTRIES = 1000


class Raw:
    """Something that is there only in the forms of this bundle."""

    def __init__(self, bundle):
        self.bundle = bundle

    def _repr_mimebundle_(self, include=None, exclude=None):
        return dict(self.bundle)

    def __repr__(self):
        return ""


class Handle:
    """Returned by `display` for something with a name. Nothing can be replaced here, so an update is shown as another thing."""

    def __init__(self, display, name):
        self.display, self.display_id = display, name
        self.update = display


def forms(value, session):
    """Returns the types and the contents, or None if the object shows itself. The text is for the terminal of the session, or for
    a notebook."""
    found = {}
    if type(value) not in _PLAIN and not isinstance(value, type):
        if _method(value, "_ipython_display_"):
            value._ipython_display_()
            return None
        found = _rich(value, session)
    if "text/plain" not in found:
        text = pretty(value, session.columns)
        found["text/plain"] = (_readable(found) if _says_nothing(text) else None) or text
    is_for_program = session.is_for_program
    if is_for_program:
        found = {**load("programs")["more"](value, _result), **found}
    kinds = sorted(found, key=lambda kind: kind != "text/plain")
    contents = [(kind, _bytes(kind, found[kind])) for kind in kinds if is_for_program or kind in _KINDS]
    return [(kind, content) for kind, content in contents if content is not None]


def _method(value, name):
    """A method of an object, unless it pretends to have every method."""
    method = getattr(value, name, None)
    return method if callable(method) and getattr(value, "_isolator_has_no_such_method_", None) is None else None


def _rich(value, session):
    found = {}
    bundle = _result(value, "_repr_mimebundle_", include=None, exclude=None)
    if isinstance(bundle, dict):
        found.update(bundle)
    for kind, name in _METHODS:
        if kind not in found:
            content = _result(value, name)
            if content is not None:
                found[kind] = content
    figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    if figure and isinstance(value, figure) and "image/png" not in found and value.get_children()[1:]:
        kind, content = load("figures")["picture"](session, value)
        found[kind] = content
    return found


def _says_nothing(text):
    """Whether the text of an object tells no more than its type."""
    return text.startswith("<") and bool(library("re").fullmatch(r"<[\w.<>]+(?: object)?(?: at 0x[0-9a-fA-F]+)?>", text))


def _readable(found):
    """The text of something that says nothing as text: from the best of its other forms that a model can read."""
    markdown, latex, html, svg = map(found.get, ["text/markdown", "text/latex", "text/html", "image/svg+xml"])
    if isinstance(html, str) and not isinstance(markdown or latex, str):
        try:
            return load("html")["text_of"](html[:_LONGEST_HTML]) or html[:_LONGEST_SOURCE]
        except Exception:
            return html[:_LONGEST_SOURCE]
    source = next((text for text in [markdown, latex] if isinstance(text, str)), None)
    if source is None and "application/json" in found:
        source = (_bytes("application/json", found["application/json"]) or b"").decode()
    if source is None and isinstance(svg, str):
        source = svg[:_LONGEST_SOURCE]
    return source


def _result(value, name, **arguments):
    try:
        method = _method(value, name)
        content = method(**arguments) if method else None
    except Exception:
        # The other forms do without it.
        return None
    # With it may come metadata.
    return content[0] if isinstance(content, tuple) and content else content


def _bytes(kind, content):
    """The content as it is sent, or None if it can't be."""
    if kind in _PICTURES:
        if isinstance(content, str):
            try:
                content = library("binascii").a2b_base64(content)
            except ValueError:
                return None
        if not isinstance(content, (bytes, bytearray, memoryview)):
            return None
        content = bytes(content)
    else:
        if kind == "application/pdf" and isinstance(content, bytes):
            return content if len(content) <= _LONGEST else None
        if kind.endswith("json") and not isinstance(content, str):
            try:
                content = library("json").dumps(content)
            except (TypeError, ValueError, RecursionError):
                return None
        if not isinstance(content, str):
            return None
        if kind == "text/plain":
            return _cut(content)
        content = content.encode(errors="replace")
    return content if len(content) <= (_LONGEST_HTML if kind == "text/html" else _LONGEST) else None


def _cut(text):
    whole = text[:_LONGEST_TEXT].encode(errors="backslashreplace")
    if len(text) <= _LONGEST_TEXT and len(whole) <= _LONGEST_TEXT:
        return whole
    note = "\n... (cut here, there are %d characters)" % len(text)
    return (whole[: _LONGEST_TEXT - len(note)].decode(errors="ignore") + note).encode()


class _TooMuch(Exception):
    """There is more text than is ever sent."""


def pretty(value, columns=None):
    """Returns the text of an object. What is longer than a line has one entry in each, as in a notebook. On a terminal with so
    many columns, lines are filled."""
    printer = _Printer()
    try:
        tree = printer.tree(value)
    except _TooMuch:
        tree = None
    if tree is None:
        # All of it would take too long to lay out.
        return "".join(printer.written) + "\n... (cut here)"
    lines = []
    line = _LINE if columns is None else max(columns - 1, _NARROWEST)
    _lay_out(tree, 0, 0, 0, lines, line, columns is not None)
    return "".join(lines)


class _Group:
    """Entries between brackets. Each is a text or a group, or a key with one of them."""

    def __init__(self, start, entries, end):
        self.start, self.entries, self.end = start, entries, end
        commas = 2 * max(len(entries) - 1, 0)
        self.width = len(start) + sum(_width(entry) for entry in entries) + commas + len(end)


def _width(node):
    if type(node) is tuple:
        return sum(map(_width, node))
    if type(node) is _Group:
        return node.width
    # A text with line breaks never fits.
    return len(node) if "\n" not in node else _NEVER


def _lay_out(node, column, indent, tail, out, line, is_filled):
    """Writes a node that begins in a column and is followed by `tail` characters. Returns the column after it."""
    if type(node) is str:
        lines = node.split("\n")
        out.append(("\n" + " " * indent).join(lines))
        return column + len(node) if len(lines) == 1 else indent + len(lines[-1])
    if type(node) is tuple:
        for part in node[:-1]:
            column = _lay_out(part, column, indent, 0, out, line, is_filled)
        return _lay_out(node[-1], column, indent, tail, out, line, is_filled)
    is_broken = column + node.width + tail > line
    out.append(node.start)
    column += len(node.start)
    indent += len(node.start)
    # Whether more can stand in the line of the entry before.
    has_room = False
    for at, entry in enumerate(node.entries):
        after = len(node.end) + tail if at + 1 == len(node.entries) else 1
        if at:
            is_beside = not is_broken or (has_room and column + 2 + _width(entry) + after <= line)
            out.append(", " if is_beside else ",\n" + " " * indent)
            column = column + 2 if is_beside else indent
        # An entry with a key has a line of its own, and so has what needs several.
        has_room = is_filled and type(entry) is not tuple and indent + _width(entry) + after <= line
        column = _lay_out(entry, column, indent, after, out, line, is_filled)
    out.append(node.end)
    return column + len(node.end)


class _Printer:
    def __init__(self):
        self._open = set()
        self._length = 0
        self.written = []

    def text(self, text):
        self.written.append(text)
        self._length += len(text)
        if self._length > 2 * _LONGEST_TEXT and len(self.written) > 1:
            raise _TooMuch
        return text

    def tree(self, value):
        kind = type(value)
        owner = next(base for base in kind.__mro__ if "__repr__" in vars(base))
        draw = _DRAWN.get(owner) or _DRAWN_BY_NAME.get((owner.__module__, owner.__qualname__))
        if draw is None:
            return self.text(repr(value))
        if id(value) in self._open:
            return self.text(_CYCLES.get(owner, "%s(...)" % kind.__name__))
        self._open.add(id(value))
        try:
            return draw(self, value)
        finally:
            self._open.discard(id(value))

    def _entries(self, values):
        found = []
        for value in values:
            if len(found) == _MOST_ENTRIES:
                found.append(self.text("..."))
                break
            found.append(self.tree(value))
        return found

    def call(self, name, *arguments):
        return _Group(self.text(name + "("), [self.tree(argument) for argument in arguments], ")")

    def list(self, value):
        return _Group("[", self._entries(list.__iter__(value)), "]")

    def tuple(self, value):
        return _Group("(", self._entries(tuple.__iter__(value)), ",)" if len(value) == 1 else ")")

    def dict(self, value):
        entries = []
        for key, item in value.items():
            if len(entries) == _MOST_ENTRIES:
                entries.append(self.text("..."))
                break
            entries.append((self.tree(key), self.text(": "), self.tree(item)))
        return _Group("{", entries, "}")

    def set(self, value):
        kind = type(value)
        if not value:
            return self.text("%s()" % kind.__name__)
        entries = value
        if len(value) <= _MOST_ENTRIES:
            try:
                entries = sorted(value)
            except Exception:
                pass
        start, end = ("{", "}") if kind is set else (kind.__name__ + "({", "})")
        return _Group(start, self._entries(entries), end)

    def long(self, value):
        """The text of a string, of which no more is made than can be shown."""
        if len(value) <= 2 * _LONGEST_TEXT:
            return self.text(repr(value))
        self.text(repr(value[:_LONGEST_TEXT]))
        raise _TooMuch

    def plain_object(self, value):
        kind = type(value)
        return self.text("<%s.%s at 0x%x>" % (kind.__module__, kind.__qualname__, id(value)))

    def kind(self, value):
        if type(value).__repr__ is not type.__repr__:
            return self.text(repr(value))
        return self.text(_name(value))

    def function(self, value):
        name = _name(value)
        try:
            name += str(library("inspect").signature(value))
        except (ValueError, TypeError):
            pass
        return self.text("<function %s>" % name)

    def default_dict(self, value):
        return _Group(
            self.text(type(value).__name__ + "("), [self.tree(value.default_factory), self.dict(value)], ")"
        )

    def ordered_dict(self, value):
        return self.call(type(value).__name__, *([list(value.items())] if value else []))

    def counter(self, value):
        return self.call(type(value).__name__, *([dict(value.most_common())] if value else []))

    def deque(self, value):
        more = [self.text("maxlen=%d" % value.maxlen)] if value.maxlen is not None else []
        return _Group(self.text("deque("), [_Group("[", self._entries(value), "]"), *more], ")")

    def number(self, value):
        return self.text(_float_format % value)

    def proxy(self, value):
        return self.call("mappingproxy", dict(value))


def _name(value):
    module = value.__module__
    name = getattr(value, "__qualname__", value.__name__)
    return name if module in (None, "builtins", "exceptions") else "%s.%s" % (module, name)


_DRAWN = {
    list: _Printer.list,
    tuple: _Printer.tuple,
    dict: _Printer.dict,
    set: _Printer.set,
    frozenset: _Printer.set,
    str: _Printer.long,
    bytes: _Printer.long,
    object: _Printer.plain_object,
    type: _Printer.kind,
    type(_cut): _Printer.function,
    type(len): _Printer.function,
    type(type.__dict__): _Printer.proxy,
}
_DRAWN_BY_NAME = {
    ("collections", "defaultdict"): _Printer.default_dict,
    ("collections", "OrderedDict"): _Printer.ordered_dict,
    ("collections", "Counter"): _Printer.counter,
    ("collections", "deque"): _Printer.deque,
}
# With `%precision`, numbers are shown in this format.
_float_format = None
_CYCLES = {list: "[...]", tuple: "(...)", dict: "{...}", set: "{...}"}


def set_float_format(format):
    """Shows floating point numbers in a format such as ``%.3f``, and with None as Python does."""
    global _float_format
    _float_format = format
    if format is None:
        _DRAWN.pop(float, None)
    else:
        _DRAWN[float] = _Printer.number
