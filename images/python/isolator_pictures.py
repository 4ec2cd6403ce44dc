"""Matplotlib's figures in a sandbox: each that a program shows becomes a picture in its working directory.

In this image, the managers of all figures without a display are of this class, whichever backend a program chooses. A figure
that is shown without waiting stays open, as its window would, and its picture gets what it shows last: when the program
closes it or ends, and now and then before that, because a program may be killed. A picture has all that is drawn, also what sticks
out of its figure. If the program has saved the same figure, the picture is that file's, to the byte.

In a session there is a builtin `display`, and a picture is shown by it instead. What is still open at the end of a cell is closed
then, and counts as shown, even if there is nothing in its axes.
"""

import builtins
import functools
import os
import traceback
from io import BytesIO
from time import monotonic
from weakref import WeakKeyDictionary

from isolator_folder import new_file
from matplotlib import is_interactive, rcParams
from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.figure import Figure
from matplotlib.image import imsave
from numpy import array

# A picture is drawn again only when the program has had this many times as long for itself.
_PATIENCE = 10

# A picture that is larger than this many times its figure would be mostly empty, or need all the memory.
_MOST_TIMES = 3
_PAD_INCHES = 0.1

# Where figures were saved last as PNG, and how.
_saved = WeakKeyDictionary()

# Functions that a session adds. Each is called with a figure that was just saved, and the path of its file.
after_saving = []


def _remember(savefig):
    @functools.wraps(savefig)
    def remembering(self, fname, *arguments, **options):
        result = savefig(self, fname, *arguments, **options)
        if isinstance(fname, (str, os.PathLike)):
            path = os.path.abspath(fname)
            if not os.path.splitext(path)[1]:
                path += "." + (options.get("format") or rcParams["savefig.format"])
            if path.lower().endswith(".png"):
                _saved[self] = path, arguments, options
            for call in after_saving:
                call(self, path)
        return result

    return remembering


Figure.savefig = _remember(Figure.savefig)


def _as_saved(figure):
    """The picture that the program has saved, if it is still the same."""
    if figure not in _saved:
        return None
    path, arguments, options = _saved[figure]
    again = BytesIO()
    try:
        with open(path, "rb") as file:
            before = file.read()
        figure.savefig(again, *arguments, **{"format": "png", **options})
    except Exception:
        # The file or something that the options need is gone.
        return None
    return before if before == again.getvalue() else None


def box(figure):
    """The part of the plane that has something in it, unless something is far away."""
    figure.draw_without_rendering()
    drawn = figure.get_tightbbox().padded(_PAD_INCHES)
    width, height = figure.get_size_inches()
    is_near = drawn.width <= _MOST_TIMES * width and drawn.height <= _MOST_TIMES * height
    return drawn if is_near and drawn.width > 0 and drawn.height > 0 else None


def _is_session():
    return hasattr(builtins, "display")


class _Picture:
    """A picture as a session shows it, with the text of its figure."""

    def __init__(self, content, text):
        self._content, self._text = content, text

    def _repr_png_(self):
        return self._content

    def __repr__(self):
        return self._text


class FigureManager(FigureManagerBase):
    def __init__(self, canvas, num):
        super().__init__(canvas, num)
        # In interactive mode, a window opens with its figure. In a session only the end of the cell shows it.
        self._is_shown = is_interactive() and not _is_session()
        # The file, and how it was left.
        self._file = self._left = None
        # When it may be drawn again, and the last picture until then.
        self._due, self._seen = 0, None

    @classmethod
    def pyplot_show(cls, *, block=None):
        managers = [manager for manager in Gcf.get_all_fig_managers() if isinstance(manager, cls)]
        if block is None:
            block = not is_interactive()
        for manager in managers:
            if block:
                manager._draw()
                manager._is_shown = False
            else:
                manager.show()
        if block:
            # As after the windows were closed.
            Gcf.destroy_all()

    def show(self):
        self._is_shown = True
        if self._has_content():
            if monotonic() >= self._due and not _is_session():
                self._draw()
            elif hasattr(self.canvas, "buffer_rgba"):
                if self.canvas.figure.stale:
                    self.canvas.draw()
                self._seen = array(self.canvas.buffer_rgba())

    def destroy(self):
        if self._is_shown:
            self._is_shown = False
            try:
                if self._has_content():
                    self._draw()
                elif self._seen is not None:
                    # Many programs clear a figure to draw the next state.
                    picture = BytesIO()
                    imsave(picture, self._seen, format="png", dpi=self.canvas.figure.dpi)
                    self._write(picture.getvalue())
                elif _is_session():
                    self._show_empty()
            except Exception:
                # No window reports an error to the program that closes it.
                traceback.print_exc()
        super().destroy()

    def _has_content(self):
        figure = self.canvas.figure
        # An empty one has a background, and axes without anything in them.
        return len(figure.get_children()) > 1 + len(figure.axes) or any(
            axes.has_data() or axes.texts or axes.tables or axes.artists for axes in figure.axes
        )

    def _show_empty(self):
        if self.canvas.figure.axes:
            self._draw()
        else:
            # There is nothing to see, but a session tells that it is there.
            builtins.display(self.canvas.figure)

    def _draw(self):
        began = monotonic()
        if self.canvas.callbacks.callbacks.get("draw_event"):
            # An animation begins when its window is drawn.
            self.canvas.draw()
        figure = self.canvas.figure
        content = _as_saved(figure)
        if content is None:
            picture = BytesIO()
            figure.savefig(picture, format="png", bbox_inches=box(figure))
            content = picture.getvalue()
        self._write(content)
        self._seen = None
        self._due = monotonic() + _PATIENCE * (monotonic() - began)

    def _write(self, picture):
        if _is_session():
            builtins.display(_Picture(picture, repr(self.canvas.figure)))
            return
        if self._file is None or self._state() != self._left:
            # Otherwise the program has made something else of it.
            self._file = new_file()
        self._file.write_bytes(picture)
        self._left = self._state()

    def _state(self):
        try:
            state = self._file.stat()
        except FileNotFoundError:
            return None
        return state.st_ino, state.st_size, state.st_mtime_ns
