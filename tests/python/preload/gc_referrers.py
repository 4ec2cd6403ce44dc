import gc


class Thing:
    pass


def function():
    pass


thing = Thing()
print([referrer is globals() for referrer in gc.get_referrers(thing)])
print(len(gc.get_referrers(thing)), len(gc.get_referrers(function)), gc.get_referents(thing))
print(any(thing is other for other in vars(gc)["get_obj\x65cts"]()), any(globals() is other for other in vars(gc)["get_obj\x65cts"]()))
import sys

print(sys.getrefcount(thing), sys.getrefcount(globals()))
