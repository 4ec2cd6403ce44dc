#: {"preloaded": false}
# A collection changes what is counted.
import gc
import sys

print("pandas" in sys.modules, len(sys.modules), gc.get_freeze_count(), len(gc.get_objects()))
