#: {"files": {"lib/calendar.py": "x = 'mine'\n", "lib/six/__init__.py": "x = 'my six'"}}
import sys

sys.path.insert(0, "lib")
import calendar
import six

print(calendar.x, six.x)
