# An interpreter that has just ended takes no thread from the program: it can start as many as later.
import threading
import time


def most():
    end = threading.Event()
    threads = []
    try:
        for _ in range(100):
            thread = threading.Thread(target=end.wait)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        end.set()
    for thread in threads:
        thread.join()
    return len(threads)


time.sleep(0.085)
soon = most()
time.sleep(0.3)
print(soon >= most())
