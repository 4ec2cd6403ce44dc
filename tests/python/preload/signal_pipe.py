#: {"status": "error"}
import os

read, write = os.pipe()
os.close(read)
try:
    os.write(write, b"x")
except BrokenPipeError as error:
    print(error)
stream = os.fdopen(write, "w")
stream.write("y")
stream.close()
