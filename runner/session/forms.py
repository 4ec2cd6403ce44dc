"""The forms in which something is shown: text, and HTML or pictures if the object has them."""

import sys

LONGEST_TEXT, _LONGEST_HTML, _LONGEST = 64 << 10, 512 << 10, 4 << 20
# Of all forms of a thing, with what is sent of each besides its type and its content. The runner takes no message that is much longer.
_LONGEST_THING, _HEAD = 7 << 20, 6
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
    ("application/pdf", "_repr_pdf_"),
    ("application/javascript", "_repr_javascript_"),
]
# Those that only programs get.
_FOR_PROGRAMS = {"application/pdf", "application/javascript"}
_KINDS = {"text/plain", *(kind for kind, _ in _METHODS)} - _FOR_PROGRAMS
_PICTURES = {"image/png", "image/jpeg"}
_PLAIN = {int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset, type, type(None)}


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
    """Returns the types and the contents of a value where there is no IPython, or None if it shows itself."""
    found = {}
    if type(value) not in _PLAIN and not isinstance(value, type):
        if _method(value, "_ipython_display_"):
            value._ipython_display_()
            return None
        found = _rich(value, session)
    if "text/plain" not in found:
        found["text/plain"] = repr(value)
    if session.is_for_program:
        found = {**load("programs")["more"](value), **found}
    return bounded(found, session.is_for_program)


def bounded(found, is_for_program):
    """Returns the types and the contents of a bundle of forms, as they are sent: without those that are too long, and those for which
    the ones before them leave no room. What says nothing as text gets a text from its other forms."""
    text = found.get("text/plain")
    if not isinstance(text, str):
        text = ""
    found = {**found, "text/plain": (_readable(found) if _says_nothing(text) else None) or text}
    kinds = sorted(filter(_is_text, found), key=lambda kind: kind != "text/plain")
    sent, left = [], _LONGEST_THING
    for kind in kinds:
        content = _bytes(kind, found[kind]) if is_for_program or kind in _KINDS else None
        if content is not None:
            size = _HEAD + len(kind.encode(errors="replace")) + len(content)
            if size <= left:
                left -= size
                sent.append((kind, content))
    return sent


def _is_text(kind):
    return isinstance(kind, str)


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
    picture = picture_of(value, session)
    if picture and "image/png" not in found:
        found[picture[0]] = picture[1]
    return found


def picture_of(value, session):
    """Returns the type and the content of the picture of a figure that has something in it, or None."""
    figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    if figure and isinstance(value, figure) and value.get_children()[1:]:
        return load("figures")["picture"](session, value)
    return None


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
    whole = text[:LONGEST_TEXT].encode(errors="backslashreplace")
    if len(text) <= LONGEST_TEXT and len(whole) <= LONGEST_TEXT:
        return whole
    note = "\n... (cut here, there are %d characters)" % len(text)
    return (whole[: LONGEST_TEXT - len(note)].decode(errors="ignore") + note).encode()
