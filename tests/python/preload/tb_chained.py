#: {"status": "error"}
import json


class Wrong(ValueError):
    pass


def inner(text):
    return json.loads(text)["a"] / 0


def outer(text):
    try:
        return inner(text)
    except ZeroDivisionError as error:
        error.add_note("a note")
        raise Wrong(
            "of several lines",
            text,
        ) from error


try:
    outer('{"a": 1}')
except Wrong:
    outer("{")
