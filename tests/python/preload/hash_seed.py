import os
import random
import subprocess
import sys

code = "print(hash('a'))"
seen = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(2)}
print(len(seen | {f"{hash('a')}\n"}), sys.flags.hash_randomization, os.environ.get("PYTHONHASHSEED"))
random.seed(5)
print(random.random(), random.Random("x").randint(0, 100), hash(1.5), hash((1, 2)))
