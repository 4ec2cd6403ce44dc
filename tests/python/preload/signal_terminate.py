#: {"status": "error"}
import atexit
import os
import signal
import time

atexit.register(print, "never")
print("before", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(5)
