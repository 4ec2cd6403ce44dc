#: {"env": {"COLOUR": "red", "PYTHONPATH": "/workspace/lib", "TZ": "Europe/Berlin"}, "preloaded": false,
#:  "files": {"lib/paint.py": "name = 'from lib'"}}
import os
import sys
import time

import paint

print(os.environ["COLOUR"], paint.name, sys.path, time.tzname)
