#: {"files": {"json.py": "x = 'mine'\n"}, "status": "success"}
import json

print(json.x, json.__file__)
