import threading
import time

started = threading.Event()


def work():
    started.set()
    time.sleep(0.2)
    print("thread ends", threading.main_thread().is_alive())


threading.Thread(target=work).start()
started.wait()
print("main ends")
