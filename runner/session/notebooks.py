"""A small part of IPython under its names, because notebooks import it. It is used where the image does not have IPython."""

import builtins

_PICTURES = {b"\x89PNG": "png", b"\xff\xd8": "jpeg", b"GIF8": "gif", b"<svg": "svg"}


def _read(data, url, filename):
    """The given data, or the content of a file."""
    if filename is None and isinstance(data, str) and len(data) < 1024 and "\n" not in data and not data.lstrip().startswith("<"):
        try:
            with open(data, "rb") as file:
                return file.read()
        except (OSError, ValueError):
            return data
    if filename is not None:
        with open(filename, "rb") as file:
            return file.read()
    if url is not None:
        raise OSError("%s can't be loaded: there is no network" % url)
    return data


class DisplayObject:
    """Something in one form."""

    def __init__(self, data=None, url=None, filename=None, metadata=None, **more):
        data = _read(data, url, filename) if filename is not None or url is not None else data
        self.data = data.decode(errors="replace") if isinstance(data, bytes) and self._is_text else data
        self.url, self.filename, self.metadata = url, filename, metadata

    _is_text = True

    def __repr__(self):
        return "<IPython.core.display.%s object>" % type(self).__name__


class HTML(DisplayObject):
    def _repr_html_(self):
        return self.data

    __html__ = _repr_html_


class Markdown(DisplayObject):
    def _repr_markdown_(self):
        return self.data


class Latex(DisplayObject):
    def _repr_latex_(self):
        return self.data


class Math(Latex):
    def _repr_latex_(self):
        return "$\\displaystyle %s$" % self.data.strip("$")


class SVG(DisplayObject):
    def __init__(self, data=None, url=None, filename=None, **more):
        super().__init__(_read(data, url, filename), **more)

    def _repr_svg_(self):
        return self.data


class JSON(DisplayObject):
    def _repr_json_(self):
        return self.data


class Pretty(DisplayObject):
    def __repr__(self):
        return str(self.data)


class Javascript(DisplayObject):
    pass


class Image(DisplayObject):
    _is_text = False

    def __init__(self, data=None, url=None, filename=None, format=None, embed=None, **more):
        super().__init__(_read(data, url, filename), **more)
        start = bytes(self.data[:4]) if isinstance(self.data, (bytes, bytearray)) else b""
        found = (kind for begin, kind in _PICTURES.items() if start.startswith(begin))
        self.format = next(found, (format or "png").lower().replace("jpg", "jpeg"))

    def _repr_png_(self):
        return self.data if self.format == "png" else None

    def _repr_jpeg_(self):
        return self.data if self.format == "jpeg" else None

    def _repr_svg_(self):
        return bytes(self.data).decode(errors="replace") if self.format == "svg" else None


def clear_output(wait=False):
    """Does nothing: the output of a cell stays."""


def update_display(thing, display_id=None, **more):
    builtins.display(thing)


def get_ipython():
    """Returns None: libraries ask whether there is an IPython."""
    return None


def _displays(kind):
    def display_one(*things, raw=False, **more):
        for thing in things:
            builtins.display(kind(thing) if raw else thing)

    return display_one


_CLASSES = [DisplayObject, HTML, Markdown, Latex, Math, SVG, JSON, Pretty, Javascript, Image]


def fill(module):
    """Puts the names into a module."""
    if module.__name__ in ("IPython.display", "IPython.core.display"):
        for kind in _CLASSES:
            kind.__module__ = "IPython.core.display"
            setattr(module, kind.__name__, kind)
        for kind in [HTML, Markdown, Latex, SVG, JSON]:
            name = "display_" + kind.__name__.lower()
            setattr(module, name, _displays(kind))
        module.clear_output, module.update_display, module.display = clear_output, update_display, builtins.display
    elif module.__name__ == "IPython":
        module.get_ipython, module.version_info, module.__version__ = get_ipython, (8, 24, 0, ""), "8.24.0"
        module.display = library("IPython.display")
