# What a library allocates while it is imported is seen.
import tracemalloc

tracemalloc.start()
import numpy

print(tracemalloc.get_traced_memory()[0] > 1 << 20)
