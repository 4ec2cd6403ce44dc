import sys


def depth(n=1):
    try:
        return depth(n + 1)
    except RecursionError:
        return n


print(sys.getrecursionlimit(), depth())
sys.setrecursionlimit(5000)
print(depth())


class Deep:
    def __getattr__(self, name):
        return getattr(self, name + "x")


try:
    Deep().y
except RecursionError as error:
    print(error)
nested = []
for _ in range(100_000):
    nested = [nested]
try:
    repr(nested)
except RecursionError as error:
    print(error)
