import doctest
import faulthandler
import io
import site
import sys
import timeit
import trace
import tracemalloc
import traceback


def fib(n):
    """
    >>> fib(3)
    2
    """
    return n if n < 2 else fib(n - 1) + fib(n - 2)


print(tracemalloc.is_tracing(), faulthandler.is_enabled())
tracemalloc.start()
block = bytearray(1 << 20)
print(tracemalloc.get_object_traceback(block), tracemalloc.take_snapshot().statistics("lineno")[0].size)
tracemalloc.stop()
print(site.getsitepackages(), site.getusersitepackages(), site.ENABLE_USER_SITE, site.PREFIXES)
print(doctest.testmod())
tracer = trace.Trace(count=1, trace=1)
tracer.runfunc(fib, 2)
print(sorted(tracer.results().counts.items()))
print(timeit.timeit("1", number=10) < 1)
buffer = io.StringIO()
faulthandler.dump_traceback(sys.stderr)
print(buffer.getvalue(), "".join(traceback.format_stack()))
events = []
sys.settrace(lambda frame, event, arg: events.append((event, frame.f_code.co_name)))
fib(1)
sys.settrace(None)
print(events)
