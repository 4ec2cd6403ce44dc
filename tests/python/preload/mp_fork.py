import multiprocessing as mp
import os
import sys


def square(n):
    return n * n, __name__, sys.argv, mp.parent_process().pid == os.getppid()


def fail():
    raise ValueError("in a child")


if __name__ == "__main__":
    print(mp.get_start_method(), mp.current_process())
    with mp.Pool(2) as pool:
        print(pool.map(square, range(4)))
    queue = mp.Queue()
    child = mp.Process(target=queue.put, args=([1, 2],))
    child.start()
    print(queue.get())
    child.join()
    print(child.exitcode, mp.active_children())
    child = mp.Process(target=sys.exit, args=(3,))
    child.start()
    child.join()
    print(child.exitcode)
    child = mp.Process(target=fail, name="failing")
    child.start()
    child.join()
    print(child.exitcode)
    with mp.Manager() as manager:
        shared = manager.dict(a=1)
        shared["b"] = 2
        print(dict(shared))
