"""The first string."""
import sys

here = dict(globals())
for name, value in here.items():
    if name == "__builtins__":
        value = type(value)
    print(name, repr(value)[:200])
import __main__

print(__main__ is sys.modules["__main__"], vars(__main__) is globals(), __name__)
print(type(__loader__).__name__, getattr(__loader__, "path", None), __spec__, __package__)
print(sorted(vars(sys.modules["__main__"])))
print("__cached__" in globals(), __doc__)
