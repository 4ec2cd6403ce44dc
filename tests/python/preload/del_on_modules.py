#: {"unordered": true, "ways": ["bare"]}
# The program's objects on modules that it did not make have their end too.
import json
import logging
import os
import random
import sys


class Thing:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        # To standard error directly: at this time much is gone.
        os_write(2, f"del {self.name}\n".encode())


os_write = os.write
json.thing = Thing("on json")
os.thing = Thing("on os")
random.thing = Thing("on random")
sys.thing = Thing("on sys")
json.JSONEncoder.thing = Thing("on a class")
logging.getLogger("a").thing = Thing("on a logger")
json.decoder.scanstring = Thing("in the place of a function")
print("end")
