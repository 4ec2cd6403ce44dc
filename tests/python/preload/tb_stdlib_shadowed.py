#: {"status": "error", "files": {"random.py": "x = 1\n"}}
import random

print(random.x)
random.randint(1, 2)
