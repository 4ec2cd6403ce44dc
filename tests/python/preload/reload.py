import importlib
import json
import sys
import time

with open("changing.py", "w") as file:
    file.write("x = 1\n")
import changing

print(changing.x, changing.__spec__)
time.sleep(0.01)
with open("changing.py", "w") as file:
    file.write("x = 22\n")
importlib.invalidate_caches()
print(importlib.reload(changing).x)
print(importlib.reload(json).dumps([1]), importlib.reload(json) is sys.modules["json"])
spec = importlib.util.spec_from_file_location("by_path", "changing.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.x, module)
print(importlib.util.find_spec("changing"), importlib.util.find_spec("no_such"))
