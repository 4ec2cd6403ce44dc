import concurrent.futures as futures
import threading


def work(n):
    if n == 3:
        raise ValueError(n)
    return n * 10


if __name__ == "__main__":
    for kind in (futures.ThreadPoolExecutor, futures.ProcessPoolExecutor):
        with kind(max_workers=2) as executor:
            found = [executor.submit(work, n) for n in range(5)]
            for future in found:
                print(repr(future.exception()) if future.exception() else future.result())
    executor = futures.ThreadPoolExecutor(2)
    executor.submit(lambda: print(threading.current_thread().name))
    # Left to the interpreter's end.
