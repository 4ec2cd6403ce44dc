#: {"status": "error"}
import sys


def hook(kind, value, trace):
    print("hook", kind, value, trace.tb_lineno, trace.tb_frame.f_back, file=sys.stderr)


sys.excepthook = hook
sys.unraisablehook = lambda u: print("unraisable", u.exc_value, file=sys.stderr)


class Bad:
    def __del__(self):
        raise RuntimeError("in del")


Bad()
1 / 0
