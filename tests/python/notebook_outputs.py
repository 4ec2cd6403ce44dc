"""What is alike in the outputs of two cells: addresses, times, paths of temporary files and versions can't be equal."""

import re
import struct

# Each is replaced, in this order.
_ALIKE = [
    (r"\r\n?", "\n"),
    # Colours.
    (r"\x1b\[[0-9;]*m", ""),
    (r"\b0x[0-9a-fA-F]{4,}", "ADDRESS"),
    # IPython leaves this word out, and plain Python does not.
    (r" object at ADDRESS", " at ADDRESS"),
    (r"<(?:ipython-input-[^>]+|cell \d+)>|(?:In|Cell In) ?\[\d+\]", "CELL"),
    (r"(?:/tmp|/var/folders|/var/tmp)/[\w./+-]+", "TEMPORARY"),
    (r"[^\s\"']*/(?:site|dist)-packages/", ""),
    (r"(?m)^.*(?:\bper loop\b|^CPU times:|^Wall time:|^Compiler +:|^Parser +:|slowest run took).*$", "TIMES"),
    (r"\b\d+(?:\.\d+)? ?(?:[mnuµμ]?s|min|seconds|msec|usec)\b", "TIME"),
    # What statsmodels prints with each summary.
    (r"\b\w{3}, \d\d \w{3} \d{4}\b", "DATE"),
    (r"\b\d\d:\d\d:\d\d\b(?=\s+(?:Log-Likelihood|Scale|Pearson|AIC|BIC|LL-Null|Df|No\.)|\s*$)", "TIME"),
    (r"\b\d+\.\d+\.\d+(?:\.?\w+)*\b", "VERSION"),
    # NumPy 2 says what a number is.
    (r"\bnp\.(?:u?int|float|complex)\d*\(([^()]*)\)", r"\1"),
    (r"\bnp\.(True|False)_", r"\1"),
    (r"\bnp\.str_\(('[^']*')\)", r"\1"),
    (r"(?m)[ \t]+$", ""),
]
_ALIKE = [(re.compile(pattern), replacement) for pattern, replacement in _ALIKE]


def size(picture):
    """Width and height of a PNG, and of another picture nothing."""
    if picture[:8] == b"\x89PNG\r\n\x1a\n":
        return struct.unpack(">II", picture[16:24])
    return None


def alike(text):
    """A text without what can't be equal."""
    for pattern, replacement in _ALIKE:
        text = pattern.sub(replacement, text)
    return text.strip("\n")
