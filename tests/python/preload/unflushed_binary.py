#: {"ways": ["bare"]}
import gzip
import io
import json
import os
import zipfile


class Printed(io.RawIOBase):
    def writable(self):
        return True

    def write(self, data):
        print("written", bytes(data))
        return len(data)

    def close(self):
        print("closed")
        super().close()


def function():
    pass


buffered = io.BufferedWriter(Printed())
buffered.write(b"abc")
json.archive = zipfile.ZipFile("a.zip", "w")
json.archive.writestr("x", "y")
packed = gzip.open("a.gz", "wb")
packed.write(b"x")
os.system("ls -s --block-size=1 a.zip a.gz 2>&1 | wc -l")
