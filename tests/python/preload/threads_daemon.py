import atexit
import threading
import time

atexit.register(print, "at exit")


def work():
    try:
        time.sleep(30)
    finally:
        print("never")


thread = threading.Thread(target=work, daemon=True)
thread.start()
print(thread.name, thread.daemon, thread.is_alive(), threading.active_count())
