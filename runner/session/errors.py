"""Reports exceptions as Python prints them, without what belongs to the kernel."""

import sys

_OWN_FILES = folder + "/"
NO_DEBUGGER = "No user can answer a debugger here. %tb prints the last error again; cells can look at what its functions get and return."
# The name of a cell's file in IPython begins with it, and goes on with its number.
_CELL = "<ipython-input-"


def one_line(error):
    """Returns the type and the message in one line."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__", "IPython.core.error"):
        name = "%s.%s" % (kind.__module__, name)
    try:
        message = str(error)
    except Exception:
        message = "<exception str() failed>"
    if isinstance(error, SyntaxError) and isinstance(error.filename, str) and error.filename.startswith(_CELL):
        message = message.replace(error.filename, "Cell In[%s]" % error.filename[len(_CELL) :].partition("-")[0])
    return "%s: %s" % (name, message.strip().partition("\n")[0]) if message else name


def report(error, register_sources=None):
    """Returns the text that Python prints for an exception. Later the client finds it as it does at Python's prompt."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    if register_sources is not None:
        register_sources()
    if isinstance(error, SyntaxError):
        _add_text(error)
    found = library("traceback").TracebackException(type(error), error, trace)
    _leave_out_own(found)
    is_alone = not (found.stack or found.__cause__ or found.__context__ or getattr(found, "exceptions", None))
    return "".join(found.format_exception_only() if is_alone else found.format())


def _leave_out_own(found):
    waiting, seen = [found], set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(_OWN_FILES)]
        waiting += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def _add_text(error):
    """The compiler looks for the line in a file, and a cell has none."""
    if error.text is None and error.lineno and error.filename:
        error.text = library("linecache").getline(error.filename, error.lineno) or None
