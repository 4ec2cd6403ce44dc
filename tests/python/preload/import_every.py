#: {"ways": ["bare"]}
# Which modules an import brings, and in which order.
import builtins
import sys

before = set(sys.modules)
plain_import = builtins.__import__


def traced(name, globals=None, *rest):
    print((globals or {}).get("__name__"), name)
    return plain_import(name, globals, *rest)


builtins.__import__ = traced
import json
import logging
import subprocess

builtins.__import__ = plain_import
print([name for name in sys.modules if name not in before])
