#: {"hide": ["started \\d+"]}
import threading


def fail():
    raise ValueError("in a thread")


thread = threading.Thread(target=fail, name="failing")
thread.start()
thread.join()
import sys

other = threading.Thread(target=sys.exit, args=(5,))
other.start()
other.join()
print("main goes on")
local = threading.local()
local.x = 1
print(vars(local), threading.enumerate())
