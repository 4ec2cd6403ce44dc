#: {"files": {"queue.py": "x = 'mine'\n"}, "status": "success"}
import queue

print(queue.x, queue.__file__)
