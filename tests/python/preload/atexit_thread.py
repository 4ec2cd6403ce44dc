import atexit
import threading


@atexit.register
def late():
    try:
        thread = threading.Thread(target=print, args=("in a thread",))
        thread.start()
        thread.join()
    except RuntimeError as error:
        print(error)
