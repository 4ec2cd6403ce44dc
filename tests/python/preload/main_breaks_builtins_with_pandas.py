#: {"ways": ["loaded"]}
import builtins
import gc
import sys

import pandas


def no(*_):
    print("called", file=sys.stderr)
    raise RuntimeError("no")


def function():
    pass


for name in ("set", "map", "any", "hasattr", "type", "iter", "dict", "list", "isinstance", "__import__", "getattr"):
    setattr(builtins, name, no)
gc.freeze = vars(gc)["get_obj\x65cts"] = gc.collect = gc.unfreeze = no
del sys.modules["gc"]
print("end")
