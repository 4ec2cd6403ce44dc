# What was left in a stream that another has taken the place of is written.
import sys

sys.stdout.reconfigure(line_buffering=False, write_through=False)
print("kept", end="")
sys.stdout = sys.stderr
print("to the other")
