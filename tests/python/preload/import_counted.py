# Every import goes through this function, also those that a module does.
import builtins

original, names = builtins.__import__, []


def counted(name, *args, **kwargs):
    names.append(name)
    return original(name, *args, **kwargs)


builtins.__import__ = counted
import numpy

print(len(names) > 100, "numpy" in names)
