import gc


class Node:
    def __init__(self, name):
        self.name = name
        self.me = self

    def __del__(self):
        print("del", self.name, self.me is self)


def make():
    # Garbage long before the end, and collected only there.
    Node("garbage")


gc.disable()
make()
pair = Node("left"), Node("right")
pair[0].other, pair[1].other = pair[1], pair[0]
print("end")
