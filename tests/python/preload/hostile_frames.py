# What looks like the runner's own messages is output like any other.
import os

os.write(1, b"\x43\x00\x00\x00\x02{}" + b"ready\n" + b".")
os.write(2, b".\n")
