#: {"status": "error"}
import sys

print("out")
sys.stderr.close()
raise ValueError("not shown")
