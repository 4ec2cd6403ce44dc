#: {"status": "error"}
# To the whole group, which is the program and its children and nobody else.
import os
import signal
import time

if os.fork() == 0:
    time.sleep(30)
    os._exit(0)
os.killpg(0, signal.SIGTERM)
time.sleep(5)
