#: {"ways": ["bare"]}
import sys

# The order is that in which they were imported.
print(list(sys.modules))
print(list(sys.path_importer_cache), sys.meta_path, sys.path_hooks)
for name, module in sys.modules.items():
    if name == "__main__":
        continue
    spec = getattr(module, "__spec__", None)
    print(name, spec, getattr(module, "__file__", None), sorted(vars(module)))
