"""How a session shows the figures of matplotlib: with all that is in them, as notebooks do. What the cell has just saved is shown
as it was saved, because the file comes back, too, and the same picture is then there once."""

import functools
import os
import sys

_LONGEST = 4 << 20
_KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}


def _box(figure):
    return "tight"


def _as_saved(figure):
    return None


def fit(session, pictures):
    """Makes the managers of the image's figures show them in this way. `pictures` is their module."""

    def draw(manager):
        if manager.canvas.callbacks.callbacks.get("draw_event"):
            # An animation begins when its window is drawn.
            manager.canvas.draw()
        session.cells.display(manager.canvas.figure)
        manager._seen = None

    pictures.FigureManager._draw = draw
    global _box, _as_saved
    # An image that was built from ours can have an older module.
    _box = getattr(pictures, "box", _box)
    if hasattr(pictures, "after_saving"):
        pictures.after_saving.append(functools.partial(_remember, session))
    else:
        _as_saved = getattr(pictures, "_as_saved", _as_saved)


def _remember(session, figure, path):
    """Called when a figure was saved."""
    figure._isolator_saved = None
    state = _state(path)
    if state and path.startswith(session.folder + "/"):
        try:
            if sys._getframe(2).f_globals.get("__name__") != "matplotlib.pyplot":
                # As pyplot does after this. From then on the figure knows whether it is changed.
                figure.canvas.draw()
            figure._isolator_saved = session.number, path, state
        except Exception:
            # It was saved, so it is no error of the client's. It is drawn again when it is shown.
            pass


def _state(path):
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def picture(session, figure):
    """Returns the media type and the content of a figure's picture."""
    saved = getattr(figure, "_isolator_saved", None)
    if saved and saved[0] == session.number and not figure.stale and saved[2] == _state(saved[1]):
        kind = _KINDS.get(os.path.splitext(saved[1])[1].lower())
        if kind and saved[2][1] <= _LONGEST:
            with open(saved[1], "rb") as file:
                return kind, file.read()
    content = _as_saved(figure)
    if content is not None:
        return "image/png", content
    content = library("io").BytesIO()
    figure.savefig(content, format="png", bbox_inches=_box(figure))
    return "image/png", content.getvalue()
