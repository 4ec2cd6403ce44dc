#: {"stdin": "nobody reads this"}
import sys

sys.stdin.close()
print("end")
