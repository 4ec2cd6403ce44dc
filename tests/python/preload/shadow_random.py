#: {"files": {"random.py": "x = 'mine'\n"}, "status": "success"}
import random

print(random.x, random.__file__)
