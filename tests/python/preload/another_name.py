#: {"file": "paint.py", "preloaded": false, "args": ["a"]}
import sys

print(sys.argv, __file__, sys.path[0])
