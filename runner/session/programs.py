"""What programs are shown besides what people are: exceptions, tables and charts as JSON, and forms that no person reads.

It is loaded by the first cell that was sent for a program.
"""

import sys

_PREFIX = "application/vnd.isolator."
_ERROR, _TABLE, _CHART, _VALUE = (_PREFIX + name for name in ["error", "table", "chart", "json"])
_MOST_CELLS = 1_000_000
_LONGEST_TRACEBACK = 256 << 10


def more(value):
    """Returns more forms of a value."""
    found = {}
    try:
        table = _table(value)
        if table is not None:
            found[_TABLE] = _json(table)
        drawn = _chart(value)
        if drawn is not None:
            found[_CHART] = _json(drawn)
        if type(value) in (list, dict):
            found[_VALUE] = _json(value, exactly=True)
    except Exception:
        # The other forms do without it.
        pass
    return found


def error(failure, report):
    """The form of an exception."""
    try:
        value = str(failure)
    except Exception:
        value = "<exception str() failed>"
    trace = report if len(report) <= _LONGEST_TRACEBACK else "...\n" + report[-_LONGEST_TRACEBACK:]
    return _ERROR, _json({"name": type(failure).__name__, "value": value[:_LONGEST_TRACEBACK], "traceback": trace}).encode()


def _table(value):
    pandas = sys.modules.get("pandas")
    frame = getattr(pandas, "DataFrame", None)
    if not frame or not isinstance(value, frame) or value.size > _MOST_CELLS:
        return None
    return value.to_dict(orient="list")


def _chart(value):
    figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    return load("charts")["chart"](value) if figure and isinstance(value, figure) else None


def _json(value, exactly=False):
    """JSON that every parser takes: without NaN, and with texts for what JSON does not know."""
    json = library("json")
    return json.dumps(_clean(value, exactly), allow_nan=False)


def _clean(value, exactly):
    kind = type(value)
    if kind in (str, int, bool, type(None)):
        return value
    if hasattr(value, "item") and not hasattr(value, "__len__"):
        value = value.item()
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _clean(item, exactly) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item, exactly) for item in value]
    if exactly:
        raise TypeError
    if hasattr(value, "isoformat"):
        text = value.isoformat()
        return None if text == "NaT" else text
    return str(value)
