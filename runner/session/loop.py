"""The event loop of a session."""

from contextlib import nullcontext


class Loop:
    def __init__(self, session):
        self._loop = None

    def around(self):
        """A context for code of a cell that awaits nothing."""
        return nullcontext()

    def run(self, coroutine):
        """Runs the session's event loop until a coroutine has ended. What it was waiting for stops when it is interrupted."""
        asyncio = library("asyncio")
        if self._loop is None or self._loop.is_closed():
            # Others of its kind keep a state in the system, which a checkpoint and its cell would share.
            self._loop = asyncio.SelectorEventLoop(library("selectors").PollSelector())
            asyncio.set_event_loop(self._loop)
        failure, ends = None, []
        task = self._loop.create_task(self._watch(coroutine, ends))
        try:
            self._run_loop(task)
        except BaseException as error:
            failure = error
        if failure is None:
            return task.result()
        if not task.done():
            task.cancel()
            self._run_loop(task)
            if not task.cancelled():
                # It was done at the same time, or has made something else of its end.
                task.exception()
            elif isinstance(failure, KeyboardInterrupt):
                # The place where it was waiting says more than a place in the loop.
                failure = failure.with_traceback(ends[0][1] if ends else None)
        elif not task.cancelled():
            # Otherwise asyncio would complain that the exception was never retrieved.
            task.exception()
            if ends and ends[0][0] is failure:
                # It has come through the loop, which is none of the client's.
                failure = failure.with_traceback(ends[0][1])
        raise failure

    async def _watch(self, coroutine, ends):
        try:
            return await coroutine
        except BaseException as error:
            ends.append((error, error.__traceback__))
            raise

    def _run_loop(self, task):
        stop = self._loop.stop
        task.add_done_callback(lambda _: stop())
        # The end of an interrupted run can stop it early.
        while not task.done():
            self._loop.run_forever()
