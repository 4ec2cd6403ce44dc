"""Variables of the environment that are set for one cell."""

import os


def put(text):
    """Sets variables, each `NAME=value` and a null character. Returns what they were before."""
    pairs = [pair.partition("=") for pair in text.decode(errors="surrogateescape").split("\0") if pair]
    before = {name: os.environ.get(name) for name, _, _ in pairs}
    for name, _, value in pairs:
        os.environ[name] = value
    return before


def take_back(before):
    """Sets them back."""
    for name, value in before.items():
        if value is not None:
            os.environ[name] = value
        elif name in os.environ:
            del os.environ[name]
