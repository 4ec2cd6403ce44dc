#: {"status": "error"}
import os
import sys

sys.stdout = os.fdopen(1, "w", buffering=1000, closefd=False)
print("lost")
os.close(1)
