import io
import sys

print("to the first")
mine = sys.stdout = io.StringIO()
print("to mine")
sys.stderr.write(repr(mine.getvalue()))
sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), encoding="latin-1", write_through=False)
print("to the third, ü")
sys.stdout.reconfigure(encoding="utf-8")
print("ü")
