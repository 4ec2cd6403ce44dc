"""The coroutine of a cell, as a task that an interrupt reaches where it waits."""

from _signal import ITIMER_REAL, SIG_DFL, SIG_IGN, SIGALRM, getitimer, getsignal, setitimer, signal as set_handler

# How long a task may keep the loop from turning, in seconds, before an interrupt of the cell is raised in the task.
_PATIENCE = 0.1


class Awaited:
    """The coroutine of a cell."""

    def __init__(self, coroutine):
        self._coroutine = coroutine
        self.task = None
        # What is raised where it waits, and what it has raised itself, with the traceback.
        self.cause = self.failure = self.place = None
        self._is_due = False

    def interrupt(self, cause):
        """Has an exception raised where the coroutine waits."""
        if self.task.done():
            return
        if isinstance(cause, KeyboardInterrupt):
            # The place where it was waiting says more than a place in the loop.
            cause = cause.with_traceback(None)
        self.cause, self._is_due = cause, True
        self.task.cancel()

    async def run(self):
        return await _Steps(self)

    def steps(self):
        step, value = self._coroutine.send, None
        while True:
            try:
                waited = step(value)
            except StopIteration as end:
                return end.value
            except BaseException as error:
                self.failure, self.place = error, error.__traceback__
                raise
            try:
                step, value = self._coroutine.send, (yield waited)
            except BaseException as error:
                step, value = self._coroutine.throw, error
                if self._is_due:
                    self._is_due, value = False, self.cause
                    if hasattr(self.task, "uncancel"):
                        self.task.uncancel()


class _Steps:
    def __init__(self, awaited):
        self._awaited = awaited

    def __await__(self):
        return self._awaited.steps()


def keep(context):
    """Keeps what a cell that awaits has set of variables of its context, as if it had not been a task."""
    for variable, value in context.items():
        if variable.get(variable) is not value:
            variable.set(value)


class Alarm:
    """The alarm of the process, for an interrupt that waits until the loop turns."""

    def __init__(self):
        self._handler = self._call = None

    def is_free(self):
        """Whether the client does not use it."""
        return getsignal(SIGALRM) == SIG_DFL and not any(getitimer(ITIMER_REAL))

    def set(self, handler, call):
        """Has a handler called if the loop does not run `call` soon."""
        self._handler, self._call = handler, call
        set_handler(SIGALRM, handler)
        setitimer(ITIMER_REAL, _PATIENCE)

    def clear(self):
        """Takes the alarm back. Returns what the loop has not run."""
        call, self._call = self._call, None
        if call is not None and getsignal(SIGALRM) is self._handler:
            setitimer(ITIMER_REAL, 0)
            # By default, one that came to another thread just now would end the process.
            set_handler(SIGALRM, SIG_IGN)
            set_handler(SIGALRM, SIG_DFL)
        return call
