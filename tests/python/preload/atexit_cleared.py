import atexit

atexit.register(print, "forgotten")
atexit._clear()
atexit.register(print, "kept")


class Thing:
    def __del__(self):
        print("del", kept)


kept = [Thing()]
kept.append(kept)


def function():
    pass
