"""The event loop of a session, which lives as long as the session.

Tasks, servers and timers that a cell leaves go on in later cells, and between cells, until the sandbox is frozen. Code of a cell that
is not in a coroutine sees this loop as the one that is running, as in a notebook. Unlike there, it can also call `asyncio.run` and
`run_until_complete`: for them no loop runs.

A checkpoint shares all that the system keeps with the cells after it. So the loop waits with `poll`, which keeps nothing there, and a
socket that a checkpoint shares is shut down before it is closed, or its other end would not notice.

`asyncio` is imported by the client, and not by this file: a session without it has no loop.
"""

import sys
from posix import _exit, getpid

from _signal import SIGINT, default_int_handler, getsignal, set_wakeup_fd, signal as set_handler
from _thread import _count as count_threads, get_ident
from time import sleep

# How often what is ready is run at the end of a cell. What a task does at once belongs to the cell that has made it.
_TURNS_AT_END = 8
# How often in a row the loop may fail between two cells.
_MOST_FAILURES = 8
# How often, and after how many seconds, the threads of an executor are looked at, and how long they may take to end.
_LOOKS_AT_THREADS, _BETWEEN_LOOKS, _THREAD_TIMEOUT = 5, 0.001, 0.1
_channel = load("channel")
_guarded, _signals = _channel["guarded"], _channel["signals"]
_Alarm, _Awaited, _keep = map(load("awaited").get, ["Alarm", "Awaited", "keep"])


class Loop:
    """The loop, made when it is first needed."""

    def __init__(self, session):
        self._session, self._channel = session, session.channel
        self._asyncio = self._loop = None
        self._fitted, self._dead = [], []
        self._thread = get_ident()
        # The loop that code of a cell sees while none runs, and the one that really runs.
        self._seen = self._running = None
        self._is_in_cell = self._is_broken = self._is_between = False
        # The process that made each socket, and the backlog and the address of those that listen.
        self._sockets = None

    # Cells.

    def around(self):
        """Returns a context manager for the code of a cell."""
        return _Around(self)

    def begin(self):
        """Has the code that follows see the loop."""
        self._is_in_cell, self._running = True, None
        # In a template, sessions would share the loop.
        if self._is_here() and self._make_ready() is not None:
            self._see(self._loop)

    def end(self):
        self._is_in_cell = False
        if self._seen is not None:
            self._seen = None
            self._put(None)

    def run(self, coroutine):
        """Runs the loop until a coroutine has ended. An interrupt is raised where it waits, and not in a task that happens to run."""
        if self._make_ready() is None:
            self.fit(library("asyncio"))
            if self._make_ready() is None:
                coroutine.close()
                raise RuntimeError("The session can't make an event loop: asyncio does not work anymore")
        loop, main, alarm, current_task = self._loop, _Awaited(coroutine), _Alarm(), self._asyncio.current_task
        if loop.is_running():
            coroutine.close()
            raise RuntimeError("The event loop of the session is running already")

        def interrupt(number, frame):
            runs_client = self._runs_client(frame)
            if runs_client and (current_task(loop) is main.task or not alarm.is_free()):
                default_int_handler(number, frame)
            # Raised here, it would end another task, or come between two steps of the loop, and one could be lost.
            call = loop.call_soon_threadsafe(deliver)
            if runs_client:
                alarm.set(insist, call)

        def deliver():
            alarm.clear()
            main.interrupt(KeyboardInterrupt())

        def insist(number, frame):
            call = alarm.clear()
            if call is not None and self._runs_client(frame):
                # It computes, or waits without the loop.
                call.cancel()
                default_int_handler(number, frame)

        def unraisable(lost):
            if isinstance(lost.exc_value, KeyboardInterrupt):
                # It came while Python removed an object, and would have no effect.
                loop.call_soon_threadsafe(main.interrupt, KeyboardInterrupt())
            else:
                (hook or sys.__unraisablehook__)(lost)

        hook, sys.unraisablehook = getattr(sys, "unraisablehook", None), unraisable
        takes_interrupts = getsignal(SIGINT) is default_int_handler
        if takes_interrupts:
            set_handler(SIGINT, interrupt)
            # One that comes just before the loop waits has to wake it.
            woken = set_wakeup_fd(loop._csock.fileno(), warn_on_full_buffer=False)
        try:
            context = library("contextvars").copy_context()
            more = {"context": context} if sys.version_info >= (3, 11) else {}
            # Not by the loop: a factory of the client need not make tasks.
            main.task = task = self._asyncio.Task(main.run(), loop=loop, **more)
            task.add_done_callback(lambda _: loop.stop())
            failures = 0
            while not task.done():
                try:
                    loop.run_forever()
                except (KeyboardInterrupt, SystemExit) as error:
                    main.interrupt(error)
                except Exception as error:
                    failures += 1
                    if failures == _MOST_FAILURES or self._is_of_loop(error):
                        raise
                    # A handler of signals has raised it.
                    main.interrupt(error.with_traceback(self._without_loop(error.__traceback__)))
        except Exception:
            # Not the client's: the loop itself fails.
            self._is_broken = True
            coroutine.close()
            raise
        finally:
            alarm.clear()
            if takes_interrupts:
                if getsignal(SIGINT) is interrupt:
                    set_handler(SIGINT, default_int_handler)
                if not loop._signal_handlers:
                    set_wakeup_fd(woken, warn_on_full_buffer=False)
            if getattr(sys, "unraisablehook", None) is unraisable:
                sys.unraisablehook = hook
        _keep(context)
        failure = main.failure if task.cancelled() else task.exception()
        if failure is None and not task.cancelled():
            return task.result()
        # It may have come through the loop, which is none of the client's. A task that was cancelled at once has not failed.
        raise failure.with_traceback(main.place) if main.failure is failure is not None else failure or main.cause or KeyboardInterrupt()

    def settle(self):
        """Runs what is ready at the end of a cell."""
        if self._loop is None or self._make_ready() is None:
            return
        loop = self._loop
        try:
            for _ in range(_TURNS_AT_END):
                if not loop._ready:
                    break
                stop = loop.call_soon(loop.stop)
                try:
                    loop.run_forever()
                finally:
                    stop.cancel()
        except Exception as error:
            if not self._is_of_loop(error):
                raise
            self._is_broken = True
            self._tell(error)

    # Between cells.

    def turn(self, seconds):
        """Turns the loop until the runner says something, if there is anything that can happen in it. Begins after that time."""
        if self._loop is None or not self._has_work() or self._channel.wait(seconds):
            return
        # Each access makes another one, and it is compared below.
        failures, between = 0, self._interrupt_between
        before = _signals.replace(between)
        try:
            while failures < _MOST_FAILURES and not self._channel.has_message():
                failure = _guarded(self._turn)
                if failure is not None:
                    failures += 1
                    _guarded(lambda: self._tell(failure))
                    if isinstance(failure, Exception) and self._is_of_loop(failure):
                        self._is_broken = True
                        break
        finally:
            after = _signals.replace(before)
            if after is not between:  # A task has set another handler.
                _signals.replace(after)

    def _turn(self):
        if self._make_ready() is None:
            raise RuntimeError("the session has no event loop")
        loop, number = self._loop, self._channel.number
        loop.add_reader(number, loop.stop)
        self._is_between = True
        try:
            loop.run_forever()
        finally:
            self._is_between = False
            loop.remove_reader(number)

    def _has_work(self):
        loop = self._loop
        try:
            if self._is_broken or not _is_alive(loop):
                return False
            is_waiting = len(loop._selector.get_map()) > loop._internal_fds
            # A thread can call the loop, which wakes it.
            return bool(loop._ready or loop._scheduled or is_waiting or loop._signal_handlers or count_threads())
        except Exception:
            # A cell has broken it.
            self._is_broken = True
            return False

    def _interrupt_between(self, number, frame):
        """An interrupt between two cells means nothing, unless a task keeps the next cell from beginning."""
        if self._channel.has_message() and self._runs_client(frame):
            raise KeyboardInterrupt

    def _tell(self, failure):
        if isinstance(failure, Exception) and self._is_of_loop(failure):
            head = "The event loop of the session has failed. The next cell gets a new one.\n"
        elif isinstance(failure, KeyboardInterrupt):
            head = "A task that kept the next cell from beginning was interrupted.\n"
        else:
            head = "A task or a handler has ended between two cells with %s. The session goes on.\n" % type(failure).__name__
        reported = failure.with_traceback(self._without_loop(failure.__traceback__))
        self._session.complain(head + self._session.cells.report(reported))

    def before_waiting(self):
        """Called by the selector before it waits."""
        if not self._is_between:
            return
        if not self._channel.is_ours():
            # A task has forked. The fork must not take the session's messages.
            _exit(0)
        self._session.flush()

    # Checkpoints.

    def release(self):
        """Ends idle threads of the loop's executor: no checkpoint can be made with them. It starts others when it needs them."""
        try:
            loop = self._loop
            executor = None if loop is None or loop.has_own_executor else loop._default_executor
            if executor is None:
                return
            threads = list(executor._threads)
            for _ in range(_LOOKS_AT_THREADS):
                # Each that waits for work has released this semaphore once. One that has just done its work does so in a moment.
                if executor._idle_semaphore._value == len(threads):
                    break
                sleep(_BETWEEN_LOOKS)
            else:
                return
            loop._default_executor = None
            executor.shutdown(wait=False)
            for thread in threads:
                thread.join(_THREAD_TIMEOUT)
        except Exception:
            # A cell has broken it. The threads that are left are a reason for no checkpoint.
            pass

    def go_back(self):
        """Makes the loop as it was, in a checkpoint that is the session again."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        # The process that is gone may have left something in it.
        loop._close_self_pipe()
        loop._make_self_pipe()
        if loop._signal_handlers:
            set_wakeup_fd(loop._csock.fileno())
        for one, (_, backlog, address) in list((self._sockets or {}).items()):
            if backlog is not None and one.fileno() >= 0 and not one.getsockopt(*self._accepts):
                for step in [lambda: one.bind(address), lambda: one.listen(backlog)]:
                    try:
                        step()
                    except OSError:
                        # It has its address still, or another socket has it now.
                        pass

    def note_socket(self, one, backlog=None):
        """Notes a socket that the loop uses. `backlog` is given for one that listens."""
        module = library("socket")
        if type(one) is not module.socket:
            return
        if self._sockets is None:
            self._sockets = library("weakref").WeakKeyDictionary()
            self._accepts = module.SOL_SOCKET, module.SO_ACCEPTCONN
        self._sockets[one] = getpid(), backlog, one.getsockname()
        one.__class__ = _shared(module.socket, self)

    def close_socket(self, one):
        owner, backlog, _ = self._sockets.pop(one, (None, None, None))
        if owner in (None, getpid()) or not self._channel.is_ours():
            return
        if backlog is not None and one.family == library("socket").AF_UNIX:
            # It could not be opened again, and its name goes with it.
            return
        try:
            one.shutdown(2)
        except OSError:
            # It is not connected.
            pass

    # The loop itself.

    def fit(self, asyncio):
        """Adapts `asyncio` when it was imported."""
        if self._is_fitted(asyncio):
            return
        events, selectors = asyncio.events, library("selectors")
        # Loops that cells make have to survive an undo, too.
        selectors.DefaultSelector = selectors.PollSelector
        get, put = events._get_running_loop, events._set_running_loop
        self._put = put

        def _get_running_loop():
            if self._seen is not None and self._running is None and self._is_here():
                return None
            return get()

        def _set_running_loop(loop):
            if self._is_here():
                self._running = loop
                loop = self._seen if loop is None else loop
            put(loop)

        events._get_running_loop, events._set_running_loop = _get_running_loop, _set_running_loop
        self._fitted.append(asyncio)
        if self._is_in_cell and self._make_ready() is not None:
            self._see(self._loop)

    def _is_fitted(self, asyncio):
        return any(asyncio is one for one in self._fitted)

    def _is_here(self):
        return get_ident() == self._thread and self._channel.is_ours()

    def _see(self, loop):
        self._seen = loop
        if self._running is None:
            self._put(loop)

    def _make_ready(self):
        """Returns a loop that can run, or None."""
        newest, lost = sys.modules.get("asyncio"), None
        if newest is not None and not self._is_fitted(newest):
            # A cell has imported it again.
            try:
                self.fit(newest)
            except Exception:
                # It is a module of the client.
                pass
        if not self._fitted:
            return None
        newest, used = self._fitted[-1], self._asyncio
        if self._loop is not None and (self._asyncio is not newest or self._is_broken or not _is_alive(self._loop)):
            lost, self._loop = self._loop, None
            # Its end would close descriptors that may be those of others by now.
            self._dead.append(lost)
        if self._loop is None:
            self._is_broken = False
            try:
                self._loop = _session_loop(newest, self)
                self._asyncio = newest
            except Exception:
                # A cell has broken what it needs. Cells that don't need a loop can run.
                self._is_broken = True
        if lost is not None:
            self._count_lost(used, lost)
        loop = self._loop
        if loop is None:
            return None
        try:
            # A fork forgets it, and a cell may have set another one.
            self._asyncio.set_event_loop(loop)
            if loop._signal_handlers:
                set_wakeup_fd(loop._csock.fileno())
        except Exception:
            # A policy of the client.
            pass
        return loop

    def _count_lost(self, asyncio, loop):
        try:
            count = len(asyncio.all_tasks(loop))
        except Exception:
            return
        if count:
            tasks = "a task that was waiting in it is" if count == 1 else "%d tasks that were waiting in it are" % count
            text = "The event loop of the session was closed or broken, and %s lost. There is a new one now.\n"
            self._session.complain(text % tasks)

    def _runs_client(self, frame):
        """Whether code that is not the loop's own is running."""
        while frame is not None and frame.f_code not in _OUTERMOST:
            if not self._is_own(frame.f_code.co_filename):
                return True
            frame = frame.f_back
        return False

    def _is_own(self, path):
        places = [one.__path__[0] + "/" for one in self._fitted]
        return path.startswith((folder + "/", *places)) or path.endswith("/selectors.py")

    def _is_of_loop(self, error):
        """Whether an exception comes from the loop itself, and from no code of the client that it has called."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        return trace is None or self._is_own(trace.tb_frame.f_code.co_filename)

    def _without_loop(self, trace):
        while trace is not None and self._is_own(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        return trace


class _Around:
    def __init__(self, loop):
        self._enter, self._leave = loop.begin, loop.end

    def __enter__(self):
        self._enter()

    def __exit__(self, *_):
        self._leave()


def _is_alive(loop):
    try:
        # A cell may have closed the descriptors by which threads and signals wake it.
        return not loop.is_closed() and bool(loop._ssock.getsockname() is not None and loop._csock.getsockname() is not None)
    except Exception:
        return False


def _session_loop(asyncio, owner):
    """Makes a loop."""
    selectors = library("selectors")

    class Selector(selectors.PollSelector):
        def select(self, timeout=None):
            if timeout is None or timeout > 0:
                owner.before_waiting()
            return super().select(timeout)

    class SessionEventLoop(asyncio.SelectorEventLoop):
        """The event loop of a session."""

        has_own_executor = False

        def set_default_executor(self, executor):
            super().set_default_executor(executor)
            self.has_own_executor = True

        def _make_socket_transport(self, sock, *rest, **more):
            owner.note_socket(sock)
            return super()._make_socket_transport(sock, *rest, **more)

        def _make_ssl_transport(self, rawsock, *rest, **more):
            owner.note_socket(rawsock)
            return super()._make_ssl_transport(rawsock, *rest, **more)

        def _start_serving(self, protocol_factory, sock, sslcontext=None, server=None, backlog=100, *rest, **more):
            owner.note_socket(sock, backlog)
            super()._start_serving(protocol_factory, sock, sslcontext, server, backlog, *rest, **more)

    SessionEventLoop.__module__ = "asyncio"
    return SessionEventLoop(Selector())


def _shared(kind, owner, made={}):
    """A socket that checkpoints may share."""
    if kind not in made:

        class Socket(kind):
            __slots__ = ()

            def close(self):
                owner.close_socket(self)
                super().close()

        Socket.__name__, Socket.__qualname__, Socket.__module__ = "socket", "socket", "socket"
        made[kind] = Socket
    return made[kind]


_OUTERMOST = {Loop.run.__code__, Loop._turn.__code__}
