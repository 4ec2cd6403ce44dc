import multiprocessing as mp
import sys


def look(n):
    return n * 2, __name__, sys.argv, sys.path


if __name__ == "__main__":
    context = mp.get_context("forkserver")
    with context.Pool(1) as pool:
        print(pool.map(look, range(3)))
