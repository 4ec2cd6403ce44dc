"""The data of a matplotlib figure, for clients that draw it again: what is on its axes, as lists of numbers and labels."""

import sys

_UNIT = r"\s\((.*?)\)|\[(.*?)\]"
_MOST_POINTS = 100_000


class _TooMany(Exception):
    """There are more points than are sent."""


def chart(figure):
    """Returns the chart of a figure as a dictionary, or None if there is nothing on it."""
    axes = figure.get_axes()
    if not any(one.has_data() for one in axes):
        return None
    try:
        if len(axes) == 1:
            return _chart(axes[0])
        title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else None
        return {"type": "superchart", "title": title, "elements": [_chart(one) for one in axes]}
    except _TooMany:
        return {"type": "unknown", "title": None, "elements": []}


def _chart(axes):
    kind = _kind(axes)
    found = {"type": kind, "title": axes.get_title() or None, "elements": []}
    if kind in ("pie", "unknown"):
        if kind == "pie":
            found["elements"] = [_slice(wedge) for wedge in axes.patches]
        return found
    for name in "xy":
        label = getattr(axes, "get_%slabel" % name)() or None
        match = library("re").search(_UNIT, label) if label else None
        found[name + "_label"] = label
        found[name + "_unit"] = (match[1] or match[2]) if match else None
    if kind in ("line", "scatter"):
        found.update(_ticks(axes, "x"))
        found.update(_ticks(axes, "y"))
    is_turned, found["elements"] = _ELEMENTS[kind](axes)
    if is_turned:
        # It lies on its side. What is measured is named first all the same.
        for part in ["label", "unit"]:
            x, y = "x_" + part, "y_" + part
            found[x], found[y] = found[y], found[x]
    return found


def _kind(axes):
    """The kind of a chart, by what was drawn on its axes."""
    names = {"Line2D": "lines", "PathPatch": "patches", "Text": "texts", "Annotation": "texts"}
    drawn = [one for one in axes._children if names.get(type(one).__name__) != "texts"]
    kinds = [type(one).__name__ for one in drawn]
    if all(kind == "Line2D" for kind in kinds):
        return "line"
    if all(kind in ("Line2D", "PathPatch") for kind in kinds):
        return "box_and_whisker"
    kinds = {kind for one, kind in zip(drawn, kinds) if not (kind == "Line2D" and _is_grid(one))}
    for only, kind in [("PathCollection", "scatter"), ("Wedge", "pie"), ("Rectangle", "bar")]:
        if kinds == {only}:
            return kind
    return "unknown"


def _is_grid(line):
    x, y = line.get_xdata(), line.get_ydata()
    return len(x) == len(y) == 2 and bool(x[0] == x[1] or y[0] == y[1])


def _ticks(axes, name):
    axis = getattr(axes, name + "axis")
    labels = [label.get_text() for label in getattr(axes, "get_%sticklabels" % name)()]
    ticks = getattr(axes, "get_%sticks" % name)()
    scale = getattr(axes, "get_%sscale" % name)()
    get_converter = getattr(axis, "get_converter", None)
    converter = get_converter() if get_converter else axis.converter
    if "DateConverter" in type(converter).__name__:
        to_date = sys.modules["matplotlib.dates"].num2date
        values, scale = [to_date(tick).isoformat() for tick in ticks], "datetime"
    else:
        values = [_plain(tick) for tick in ticks]
        if scale == "linear" and labels and all(
            tick == at and label != str(at) for at, (tick, label) in enumerate(zip(values, labels))
        ):
            scale = "categorical"
    return {name + "_ticks": values, name + "_tick_labels": labels, name + "_scale": scale}


def _plain(value):
    """A coordinate as a number or a text."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value.astype("datetime64[s]"))
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, (int, float)):
        value = float(value)
        return value if value - value == 0 else None
    return str(value)


def _points(label, pairs):
    if len(pairs) > _MOST_POINTS:
        raise _TooMany
    return {"label": str(label), "points": [[_plain(x), _plain(y)] for x, y in pairs]}


def _lines(axes):
    found = []
    for line in axes.get_lines():
        if not _is_grid(line):
            label = str(line.get_label())
            if label.startswith("_child"):
                label = "Line " + label[len("_child") :]
            found.append(_points(label, list(zip(line.get_xdata(), line.get_ydata()))))
    return False, found


def _dots(axes):
    return False, [_points(dots.get_label(), list(dots.get_offsets())) for dots in axes.collections]


def _bars(axes):
    found, is_turned = [], False
    for container in axes.containers:
        group = str(container.get_label())
        if group.startswith("_container"):
            group = "Group " + group[len("_container") :]
        bars = list(container)
        lies = getattr(container, "orientation", None)
        lies = lies == "horizontal" if lies else len({bar.get_height() for bar in bars}) == 1
        if lies:
            is_turned = True
            labels, values = axes.get_yticklabels(), [bar.get_width() for bar in bars]
        else:
            labels, values = axes.get_xticklabels(), [bar.get_height() for bar in bars]
        for label, value in zip(labels, values):
            found.append({"label": label.get_text(), "group": group, "value": _plain(value)})
    return is_turned, found


def _slice(wedge):
    angle = abs(_rounded(float(wedge.theta2) - float(wedge.theta1)))
    return {"label": str(wedge.get_label()), "angle": angle, "radius": _plain(wedge.r)}


def _boxes(axes):
    boxes = []
    for label, patch in zip(axes.get_xticklabels(), axes.patches):
        corners = patch.get_path().vertices
        sides = [sorted(map(_rounded, corners[:, at])) for at in (0, 1)]
        boxes.append({"label": label.get_text(), "across": sides[0][:: len(sides[0]) - 1], "along": sides[1][:: len(sides[1]) - 1]})
    is_turned = _lie(axes, boxes)
    if is_turned:
        for box, label in zip(boxes, axes.get_yticklabels()):
            box["across"], box["along"], box["label"] = box["along"], box["across"], label.get_text()
    found = [dict(label=box["label"], min=box["along"][0], first_quartile=box["along"][0], median=None,
                  third_quartile=box["along"][1], max=box["along"][1], outliers=[]) for box in boxes]  # fmt: skip
    for line in axes.lines:
        across, along = ([_rounded(value) for value in data] for data in (line.get_xdata(), line.get_ydata()))
        if is_turned:
            across, along = along, across
        for box, one in zip(boxes, found):
            if across and box["across"][0] <= min(across) and max(across) <= box["across"][1]:
                _add_line(one, along)
                break
    return is_turned, found


def _lie(axes, boxes):
    """Whether boxes lie on their sides. The line of a median goes from one side of its box to the other."""
    for line in axes.lines:
        across, along = (sorted(_rounded(value) for value in data) for data in (line.get_xdata(), line.get_ydata()))
        if len(along) == 2:
            if across[0] == across[1] and any(along == box["along"] for box in boxes):
                return True
            if along[0] == along[1] and any(across == box["across"] for box in boxes):
                return False
    # Without medians, boxes that all have the same height do.
    heights = {_rounded(box["along"][1] - box["along"][0]) for box in boxes}
    return len(boxes) > 1 and len(heights) == 1


def _add_line(box, along):
    """Adds what a line in the column of a box says about it."""
    if len(along) == 2:
        low, high = min(along), max(along)
        if low == high and box["first_quartile"] <= low <= box["third_quartile"]:
            box["median"] = low
        elif high == box["first_quartile"]:
            box["min"] = low
        elif low == box["third_quartile"]:
            box["max"] = high
    elif len(along) == 1:
        box["outliers"] += along


def _rounded(value):
    """A number to eight digits, which leaves out what computing with binary fractions has added."""
    return float("%.8g" % float(value))


_ELEMENTS = {"line": _lines, "scatter": _dots, "bar": _bars, "box_and_whisker": _boxes}
