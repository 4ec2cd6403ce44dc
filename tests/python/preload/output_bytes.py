import os
import sys

os.write(1, bytes(range(256)))
sys.stdout.write("ü€😀\u0000\x1b[31m\r\n")
try:
    print("\udc80")
except UnicodeEncodeError as error:
    print(error)
print("\udc80", file=sys.stderr)
print("no newline", end="")
