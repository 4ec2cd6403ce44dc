import os

os.execvp("sh", ["sh", "-c", "ls /proc/self/fd; echo $0 $PYTHONPATH; env; ulimit -a"])
