"""A collection of algorithms as such repositories keep them: each with its examples, which the file checks itself."""
#: {"hide": ["\\d+\\.\\d+ s"]}
from __future__ import annotations

import doctest
import heapq
import math
import random
import timeit
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache


def quick_sort(values: Sequence[int]) -> list[int]:
    """
    >>> quick_sort([3, 1, 2, 3])
    [1, 2, 3, 3]
    >>> quick_sort([]) == sorted([])
    True
    >>> quick_sort([1, "a"])
    Traceback (most recent call last):
        ...
    TypeError: '<' not supported between instances of 'str' and 'int'
    """
    if len(values) < 2:
        return list(values)
    pivot, *rest = values
    return [*quick_sort([v for v in rest if v < pivot]), pivot, *quick_sort([v for v in rest if not v < pivot])]


@dataclass(order=True)
class Node:
    """
    >>> Node(2, "b") < Node(3, "a")
    True
    """

    cost: float
    name: str = field(compare=False)


def shortest(graph: dict[str, dict[str, float]], start: str) -> dict[str, float]:
    """
    >>> shortest({"a": {"b": 1, "c": 5}, "b": {"c": 2}, "c": {}}, "a")
    {'a': 0, 'b': 1, 'c': 3}
    """
    costs, queue = {start: 0}, [Node(0, start)]
    while queue:
        node = heapq.heappop(queue)
        for name, cost in graph[node.name].items():
            if node.cost + cost < costs.get(name, math.inf):
                costs[name] = node.cost + cost
                heapq.heappush(queue, Node(costs[name], name))
    return costs


@lru_cache(maxsize=None)
def fibonacci(n: int) -> int:
    """
    >>> [fibonacci(n) for n in range(10)]
    [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]
    >>> fibonacci.cache_info().misses >= 10
    True
    """
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def primes() -> Iterator[int]:
    """
    >>> from itertools import islice
    >>> list(islice(primes(), 8))
    [2, 3, 5, 7, 11, 13, 17, 19]
    """
    found: list[int] = []
    for n in range(2, 1 << 30):
        if all(n % prime for prime in found):
            found.append(n)
            yield n


def queens(size: int) -> int:
    """
    >>> queens(6)
    4
    """

    def place(row: int, columns: set, rising: set, falling: set) -> int:
        if row == size:
            return 1
        return sum(
            place(row + 1, columns | {c}, rising | {row + c}, falling | {row - c})
            for c in range(size)
            if c not in columns and row + c not in rising and row - c not in falling
        )

    return place(0, set(), set(), set())


def wrong() -> int:
    """
    >>> wrong()
    2
    """
    return 1


if __name__ == "__main__":
    print(doctest.testmod())
    random.seed(7)
    values = [random.randrange(100) for _ in range(50)]
    print(quick_sort(values) == sorted(values), Counter(values).most_common(3), deque(values, 3))
    print(queens(7), sum(n for n, _ in zip(primes(), range(100))))
    print(f"{timeit.timeit('fibonacci(30)', globals=globals(), number=10):.3f} s")
