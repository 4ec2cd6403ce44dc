#: {"hide": ["psm_\\w+"]}
import os
from multiprocessing import shared_memory

memory = shared_memory.SharedMemory(create=True, size=64)
memory.buf[:3] = b"abc"
other = shared_memory.SharedMemory(name=memory.name)
print(bytes(other.buf[:3]), len(os.listdir("/dev/shm")))
del other
# Not unlinked, of which a process of its own complains when this one has ended.
