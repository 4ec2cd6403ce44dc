#: {"args": ["a", "b"]}
import multiprocessing as mp
import os
import sys

print("imported as", __name__, sys.argv)


def look(n):
    environment = [os.environ.get(name) for name in ("PYTHONPATH", "ISOLATOR_PRELOAD")]
    return n, __name__, sys.argv, sys.path, str(sys.flags), environment, len(os.listdir("/pro\x63/self/fd"))


if __name__ == "__main__":
    with mp.get_context("spawn").Pool(1) as pool:
        print(pool.map(look, range(2)))
