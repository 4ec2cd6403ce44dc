#: {"status": "error"}
import sys

binary = sys.stdout.detach()
binary.write(b"\xff\x00binary\n")
binary.flush()
