#: {"files": {"pytz/__init__.py": "x = 'mine'", "dateutil/extra.py": "never found"}}
import dateutil.parser
import pytz

print(pytz.x, pytz.__path__, dateutil.__path__)
