# Libraries read variables when they are imported.
import os

os.environ["OPENBLAS_NUM_THREADS"] = "2"
import numpy
import threadpoolctl

print([pool["num_threads"] for pool in threadpoolctl.threadpool_info()])
