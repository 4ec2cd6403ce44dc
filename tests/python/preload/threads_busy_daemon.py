# It imports and makes objects with an end while the interpreter ends.
import threading
import time


def work():
    while True:
        import json
        import string

        json.dumps({"a": [string.digits] * 10})


for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
print("end")
