#: {"status": "error"}
import sys

sys.path[:] = []
import pandas
