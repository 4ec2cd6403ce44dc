#: {"stdin": "5 3 9\n9\nx\n", "status": "error"}
# As such collections do: asks for its input, prints what it finds, and fails at what is no number.
import sys


class BinaryTree:
    def __init__(self, value):
        self.value, self.left, self.right = value, None, None

    def insert(self, value):
        side = "left" if value < self.value else "right"
        child = getattr(self, side)
        if child is None:
            setattr(self, side, BinaryTree(value))
        else:
            child.insert(value)

    def __iter__(self):
        yield from self.left or ()
        yield self.value
        yield from self.right or ()

    def __contains__(self, value):
        return any(value == other for other in self)


def main():
    first, *rest = [int(item) for item in input("Numbers: ").strip().split()]
    tree = BinaryTree(first)
    for value in rest:
        tree.insert(value)
    print("In order:", *tree)
    wanted = int(input("Search for: "))
    print(f"{wanted} is {'' if wanted in tree else 'not '}in the tree", file=sys.stderr)
    int(input("Another: "))


if __name__ == "__main__":
    main()
