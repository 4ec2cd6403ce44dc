#: {"status": "timeout", "timeout": "1s"}
import time

print("before", flush=True)
time.sleep(30)
