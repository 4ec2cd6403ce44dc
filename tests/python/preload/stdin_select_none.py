import os
import select

# The end of an empty input is there, too.
print(select.select([0], [], [], 0)[0])
os.set_blocking(0, False)
print(os.read(0, 100))
