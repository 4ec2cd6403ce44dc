#: {"status": "error"}
import sys

sys.exit("what was wrong")
