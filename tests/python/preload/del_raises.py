class Bad:
    def __del__(self):
        raise ValueError("in del")


class Worse:
    def __init__(self):
        self.me = self

    def __del__(self):
        import json

        print(json.dumps([1]))
        undefined


def function():
    pass


bad = Bad()
worse = Worse()
print("end")
