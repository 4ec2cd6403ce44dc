#: {"status": "error"}
import os
import sys

print("not lost, for the stream is unbuffered")
sys.stdout.write("nor this")
os._exit(17)
