"""The texts of exceptions in a session with IPython: its tracebacks, from where the client's code begins."""

from types import TracebackType

_errors, _ultratb = load("errors"), library("IPython.core.ultratb")
_OWN_FILES = folder + "/"
# How often a traceback shows the same line.
_MOST_REPEATED = 3


class Traceback(_ultratb.AutoFormattedTB):
    """The texts of tracebacks."""

    def _format_list(self, extracted_list):
        """Lines that repeat, as those of an endless recursion do, are counted."""
        lines, last, times = [], None, 0
        for entry, line in zip(extracted_list, super()._format_list(extracted_list)):
            place = tuple(entry)[:3]
            times = times + 1 if place == last else 1
            last = place
            if times <= _MOST_REPEATED:
                lines.append(line)
            elif times == _MOST_REPEATED + 1:
                lines.append(1)
            else:
                lines[-1] += 1
        return ["  [Previous line repeated %d more times]\n" % one if isinstance(one, int) else one for one in lines]


def leave_out_own(error):
    """Leaves the kernel's frames out of the tracebacks of an exception, and of all others that belong to it."""
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        trace = _without_own(one.__traceback__)
        if trace is not one.__traceback__:
            one.__traceback__ = trace
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def _without_own(trace):
    """A traceback without the frames of the kernel."""
    places = []
    while trace:
        if not trace.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
            places.append(trace)
        trace = trace.tb_next
    kept = None
    for place in reversed(places):
        # Most have none between their own.
        kept = place if place.tb_next is kept else TracebackType(kept, place.tb_frame, place.tb_lasti, place.tb_lineno)
    return kept


def has_group(error):
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, BaseExceptionGroup):
            return True
        error = error.__cause__ or error.__context__
    return False


def plain_report(error):
    """The text of an exception as Python prints it, for when IPython can't."""
    try:
        return _errors["report"](error)
    except Exception:
        return _errors["one_line"](error) + "\n"
