import os
import resource
import time

usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_utime, usage.ru_maxrss, os.times()[2:4])
print(time.perf_counter() > 0, time.monotonic() > 0, time.process_time() < 30)
