"""A simulation of many nodes behind a balancer, for more of them than a test can start. The tests compare it with real nodes.

Each node runs as many programs at a time as it has slots, in the order of their calls. The balancer gives a call to a node with the
fewest open calls, as `balance leastconn` does. Time is virtual.
"""

import heapq
import itertools
import random
from collections import deque


class Model:
    """The nodes. A program takes `run` seconds, and its slot is taken for `around` more."""

    def __init__(self, nodes, slots, run, around):
        self.slots, self.takes = slots, run + around
        self.open = [0] * nodes
        self.queues = [deque() for _ in range(nodes)]
        self.running = [0] * nodes
        self.events, self.numbers = [], itertools.count()
        self.waits = []

    def at(self, time, action, *arguments):
        heapq.heappush(self.events, (time, next(self.numbers), action, arguments))

    def arrive(self, now, ended):
        """A call comes, and at its end something happens."""
        fewest = min(self.open)
        node = random.choice([node for node, calls in enumerate(self.open) if calls == fewest])
        self.open[node] += 1
        self.queues[node].append((now, ended))
        self._start(now, node)

    def _start(self, now, node):
        while self.running[node] < self.slots and self.queues[node]:
            came, ended = self.queues[node].popleft()
            self.waits.append(now - came)
            self.running[node] += 1
            self.at(now + self.takes, self._end, node, ended)

    def _end(self, now, node, ended):
        self.open[node] -= 1
        self.running[node] -= 1
        ended(now)
        self._start(now, node)

    def until(self, end):
        while self.events and self.events[0][0] <= end:
            now, _, action, arguments = heapq.heappop(self.events)
            action(now, *arguments)


def rate(nodes, slots, run, around, clients, seconds=60):
    """Calls a second, if each of the clients sends its next call when the last one has ended."""
    model, done = Model(nodes, slots, run, around), []

    def again(now):
        done.append(now)
        model.arrive(now, again)

    for _ in range(clients):
        model.arrive(0, again)
    model.until(seconds)
    return len(done) / seconds


def waits(nodes, slots, run, around, load, calls=20_000, seed=1):
    """How long calls wait for a slot if they come by themselves, at this share of what the nodes can run: the median, and the 99th
    percentile."""
    random.seed(seed)
    model = Model(nodes, slots, run, around)
    each = model.takes / (nodes * slots * load)
    time = 0.0
    for _ in range(calls):
        time += random.expovariate(1 / each)
        model.at(time, model.arrive, lambda _: None)
    model.until(float("inf"))
    found = sorted(model.waits)
    return found[len(found) // 2], found[len(found) * 99 // 100]
