#: {"status": "error"}
import os
import signal

try:
    os.kill(os.getpid(), signal.SIGINT)
finally:
    print("finally")
