# Exactly as many processes can be made as in any other start.
import os
import time

time.sleep(0.5)
children = []
try:
    while True:
        pid = os.fork()
        if pid == 0:
            time.sleep(20)
            os._exit(0)
        children.append(pid)
except OSError as error:
    print(len(children), error)
