import inspect
import sys


def function(x):
    # A comment.
    return x + 1


class Thing:
    def method(self):
        return inspect.stack()


print(inspect.getsource(function))
print(inspect.getsource(Thing))
print(inspect.getfile(function), inspect.getsourcefile(Thing), inspect.getmodule(function))
print(inspect.getsourcelines(Thing.method), inspect.getcomments(function))
for frame in Thing().method():
    print(frame.filename, frame.lineno, frame.function, frame.code_context, frame.index)
depth, frame = 0, sys._getframe()
while frame.f_back:
    depth, frame = depth + 1, frame.f_back
print(depth, frame.f_code.co_filename, frame.f_code.co_name, frame.f_code.co_firstlineno, frame.f_code.co_flags)
print(frame.f_globals is globals(), frame.f_locals is globals(), frame.f_builtins["len"], frame.f_lasti > 0)
print(list(sys._current_frames().values()) == [sys._getframe()])
try:
    sys._getframe(1)
except ValueError as error:
    print(error)
code = function.__code__
print(code.co_filename, code.co_name, code.co_qualname, function.__module__, function.__globals__ is globals())
