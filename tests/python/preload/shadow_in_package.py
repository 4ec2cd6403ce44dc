#: {"files": {"shop/__init__.py": "", "shop/queue.py": "x = 'mine'", "shop/random.py": "from . import queue\nimport random\ny = random.Random, queue.x"}}
import queue

import shop.random

print(queue.Queue, shop.random.y)
