import atexit
import os
import sys


class Own(SystemExit):
    pass


class Shown:
    def __str__(self):
        return "shown"


class Unshown:
    def __str__(self):
        raise ValueError("can't be shown")


class Number(int):
    pass


FORMS = [
    (), (None,), (0,), (3,), (256,), (257,), (-1,), (2**31,), (2**80,), (True,), (False,), (1.5,), ("text",), ("",),
    ((),), ((1, 2),), ([],), (Shown(),), (Unshown(),), (b"bytes",), (Number(7),), (ValueError("x"),), ("\udc80",),
]
for form in FORMS:
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        sys.exit(*form)
    print(repr(form) if "0x" not in repr(form) else "object", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for error in (Own, Own(5), Own(1, 2), SystemExit("s", 1), KeyboardInterrupt(), GeneratorExit(), BaseException("b")):
    child = os.fork()
    if child == 0:
        raise error
    print(repr(error), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
child = os.fork()
if child == 0:
    atexit.register(print, "not with _exit")
    os._exit(12)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
child = os.fork()
if child == 0:
    try:
        sys.exit(1)
    finally:
        sys.exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
child = os.fork()
if child == 0:
    exit("by the name of site")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
child = os.fork()
if child == 0:
    quit(8)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(exit, quit, copyright, license, help)
