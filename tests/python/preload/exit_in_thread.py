#: {"status": "error"}
import os
import threading
import time

threading.Timer(0.1, os._exit, [21]).start()
time.sleep(30)
