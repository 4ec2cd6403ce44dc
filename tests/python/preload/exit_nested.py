#: {"status": "error"}
import sys


class Guard:
    def __enter__(self):
        return self

    def __exit__(self, *what):
        print("exit", what[0])


def generator():
    try:
        yield
    finally:
        print("generator closed")


left = generator()
next(left)
try:
    with Guard():
        try:
            sys.exit(1)
        finally:
            raise KeyError("in finally")
except KeyError:
    with Guard():
        sys.exit(6)
