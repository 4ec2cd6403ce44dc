#: {"ways": ["bare"]}
import gc

print(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug(), gc.callbacks, gc.garbage)
objects = vars(gc)["get_obj\x65cts"]()
# The interpreter's own are among them, as always.
import sys

for thing in (sys, __builtins__, globals(), gc.__dict__, sys.modules, __import__("os").__dict__):
    print(any(thing is other for other in objects), gc.is_tracked(thing))
print(4000 < len(objects) < 9000, [len(vars(gc)["get_obj\x65cts"](generation=g)) < 20_000 for g in range(3)])
