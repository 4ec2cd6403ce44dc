# Modules have exit functions, too, and what was registered last runs first.
import atexit

atexit.register(print, "the program's")
import logging

import pandas


class Handler(logging.Handler):
    def close(self):
        print("a handler's")
        super().close()


logging.getLogger().addHandler(Handler())
print(pandas.Series([1, 2]).sum())
