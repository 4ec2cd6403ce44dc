import atexit
import os
import sys


class Thing:
    def __del__(self):
        print("del", os.getpid() == parent)


parent = os.getpid()
thing = Thing()
thing.me = thing
atexit.register(lambda: print("at exit", os.getpid() == parent))
if os.fork() == 0:
    sys.exit()
print(os.wait()[1])
