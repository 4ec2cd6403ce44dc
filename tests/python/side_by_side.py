"""Work of many tests that is done side by side, while each test waits for its own.

One after the other, such tests would mostly wait for an engine that can do several things at a time.
"""

from contextlib import asynccontextmanager

import anyio


class _Outcome:
    """The outcome of one piece of work."""

    def __init__(self):
        self._is_done = anyio.Event()
        self._error = None

    async def run(self, limit, work, subject):
        async with limit:
            try:
                await work(subject)
            except Exception as error:
                self._error = error
        self._is_done.set()

    async def check(self):
        """Waits for its end, and fails if it has failed."""
        await self._is_done.wait()
        if self._error is not None:
            raise self._error


@asynccontextmanager
async def side_by_side(work, subjects, at_once):
    """Begins `work` with each of the subjects, `at_once` at a time. Gives the outcomes by subject."""
    outcomes = {subject: _Outcome() for subject in subjects}
    limit = anyio.CapacityLimiter(at_once)
    async with anyio.create_task_group() as tasks:
        for subject, outcome in outcomes.items():
            tasks.start_soon(outcome.run, limit, work, subject)
        yield outcomes
        # After a failure pytest may not have asked for the others.
        tasks.cancel_scope.cancel()


def chosen(request, test):
    """The parameters of each run of a test in this session."""
    return [item.callspec.params for item in request.session.items if item.originalname == test]
