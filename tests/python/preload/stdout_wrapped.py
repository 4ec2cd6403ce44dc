# Its handler of the last resort flushes, too.
import logging
import sys


class Tee:
    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        return self.stream.write(text.upper())

    def flush(self):
        self.stream.write("[flush]")
        self.stream.flush()


sys.stdout = Tee(sys.stdout)
sys.stderr = Tee(sys.stderr)
print("hello")
