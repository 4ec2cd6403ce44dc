import builtins
import importlib.abc
import importlib.machinery
import sys

plain_import = builtins.__import__


def traced(name, globals=None, locals=None, fromlist=(), level=0):
    if globals and globals.get("__name__") == "__main__":
        print("import", name, fromlist, level)
    return plain_import(name, globals, locals, fromlist, level)


class Made(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.startswith("made_up"):
            return importlib.machinery.ModuleSpec(name, self)

    def exec_module(self, module):
        module.x = module.__name__ * 2


builtins.__import__ = traced
sys.meta_path.insert(0, Made())
import made_up
from made_up_too import x

print(made_up.x, x, made_up)
sys.meta_path.append(None)
