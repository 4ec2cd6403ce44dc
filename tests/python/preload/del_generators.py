import contextlib
import contextvars


def generator(name):
    try:
        yield name
    finally:
        print("closed", name)


first = generator("a global")
next(first)


@contextlib.contextmanager
def manager():
    print("enter")
    yield
    print("not reached")


open_context = manager()
open_context.__enter__()
variable = contextvars.ContextVar("variable")
second = generator("in a context variable")
next(second)
variable.set(second)
del second
kept = [generator("in a ring")]
next(kept[0])
kept.append(kept)
del kept


async def coroutine():
    pass


awaited_never = coroutine()
print("end")
