"""Variables of the environment that are set for one cell."""

import os


def put(text, before):
    """Sets variables, each `NAME=value` and a null character. Adds to `before` what each was."""
    pairs = [pair.partition("=") for pair in text.decode(errors="surrogateescape").split("\0") if pair]
    for name, _, value in pairs:
        old = os.environ.get(name)
        os.environ[name] = value
        before.setdefault(name, old)


def take_back(before):
    """Sets them back."""
    for name, value in before.items():
        if value is not None:
            os.environ[name] = value
        elif name in os.environ:
            del os.environ[name]
