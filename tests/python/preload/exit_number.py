#: {"status": "error"}
import sys

sys.exit(300)
