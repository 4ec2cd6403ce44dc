# A program that only mentions pandas has the modules of any other.
import gc
import sys

print("pandas" in sys.modules, len(sys.modules), gc.get_freeze_count())
