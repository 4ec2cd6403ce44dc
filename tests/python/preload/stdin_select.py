#: {"stdin": "ready"}
import select
import sys

# What was sent is there before the program begins.
print(select.select([sys.stdin], [], [], 0)[0] == [sys.stdin])
import os

os.set_blocking(0, False)
print(os.read(0, 100))
