#: {"status": "error"}
import atexit
import sys
import weakref


class Thing:
    def __del__(self):
        print("del of", self.name)


@atexit.register
def first():
    print("registered first", sys.is_finalizing(), "os" in sys.modules)


@atexit.register
def second():
    print("registered second")
    raise ValueError("at exit")


@atexit.register
def third():
    atexit.register(print, "registered at exit")
    sys.exit(9)


thing = Thing()
thing.name = "a global"
weakref.finalize(thing, print, "finalizer")
other = weakref.finalize(first, print, "never called as an exit function")
other.atexit = False
atexit.unregister(len)
print("end")
raise SystemExit(4)
