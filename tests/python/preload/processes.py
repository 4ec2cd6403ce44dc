# The interpreter that was not chosen is gone, and reaped.
import os
import time

time.sleep(0.5)
for pid in sorted(filter(str.isdigit, os.listdir("/pro\x63")), key=int):
    try:
        fields = open(f"/pro\x63/{pid}/stat").read()
    except OSError:
        continue
    print(fields.partition("(")[2].rpartition(")")[0], " Z " in fields)
