#: {"file": "src/main.py", "preloaded": false, "files": {"src/near.py": "x = 1", "far.py": "x = 2"}}
import os
import sys

import near

print(sys.argv, __file__, sys.path[0], os.getcwd(), near.x)
try:
    import far
except ImportError as error:
    print(error)
