#: {"status": "error", "ways": ["bare"]}
import ctypes
import faulthandler

print(faulthandler.is_enabled())
faulthandler.enable()


def inner():
    ctypes.string_at(0)


inner()
