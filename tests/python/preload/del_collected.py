import gc
import weakref


class Node:
    def __del__(self):
        print("del", self.number)


for number in range(3):
    node = Node()
    node.number, node.me = number, node
    seen = weakref.ref(node, lambda _: print("gone"))
    del node
    print(gc.collect() > 0, seen())
# Without being asked.
lost = []
for number in range(50_000):
    ring = []
    ring.append(ring)
    if number == 10:
        class Big(list):
            pass

        big = Big()
        big.append(big)
        lost.append(weakref.ref(big))
        del big
print(lost[0]() is None)
