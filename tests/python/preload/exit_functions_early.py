# Whoever runs the exit functions may go on afterwards.
import atexit
import gc
import sys

atexit.register(print, "at exit")
atexit._run_exitfuncs()
print(atexit._ncallbacks(), gc.get_freeze_count() < 60_000)
import json

print(json.dumps([1]), sys.modules["json"] is json)


class Ring:
    def __del__(self):
        print("del")


ring = Ring()
ring.me = ring
del ring
print(gc.collect() > 0)
