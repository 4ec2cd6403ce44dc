"""The channel to the runner, and what may interrupt the client's code.

While no cell runs, and while the kernel sends a message, no signal reaches the client's code, and nothing of it traces calls.
"""

from posix import _exit, close, dup2, getpid, kill
from sys import byteorder, getprofile, gettrace, setprofile, settrace

import _signal
import _socket
from _signal import SIG_BLOCK, SIG_SETMASK, SIGINT, getsignal, pthread_sigmask, signal as set_handler, sigpending, sigtimedwait
from _thread import allocate_lock, get_ident

_EVERY_SIGNAL = _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}
_HEAD = 5
# Room for the descriptors that come with a message.
_MOST_ANCILLARY = 64


class Channel:
    """The socket to the runner. It keeps its number in every fork."""

    def __init__(self):
        # A template for sessions has none, nor a kernel that loads what cells need. Nothing that is shown there is sent.
        self._lock, self._owner = allocate_lock(), None

    def connect(self, socket):
        # The number of its descriptor.
        self.number = socket.fileno()
        self._look, self._receive, self._receive_into, self._send = socket.recv, socket.recvmsg, socket.recv_into, socket.sendall
        self._owner = getpid()

    def is_ours(self):
        """Whether this is the session, and no process that the client has forked from it."""
        return getpid() == self._owner

    def replace(self, number):
        """Takes another socket. What this process had of the one before is closed."""
        dup2(number, self.number, False)
        close(number)
        self._owner = getpid()

    def has_message(self):
        """Whether the next message is there, or the end."""
        return has_message(self._look)

    def wait(self, seconds):
        """Waits for a message. Returns whether there is one."""
        poll = library("select").poll()
        poll.register(self.number, 1)
        return bool(poll.poll(seconds * 1000))

    def receive(self):
        """Returns the kind, the payload and the descriptors of the next message. Ends the process if there is none."""
        if not self.is_ours():
            # A fork of the client that has come here, by an exception that the kernel did not expect. The messages are the session's.
            _exit(1)
        head, descriptors = b"", []
        try:
            while len(head) < _HEAD:
                data, extra, _, _ = self._receive(_HEAD - len(head), _MOST_ANCILLARY, _socket.MSG_CMSG_CLOEXEC)
                if not data:
                    _exit(0)
                head += data
                for _, _, numbers in extra:
                    steps = range(0, len(numbers) - 3, 4)
                    descriptors += [int.from_bytes(numbers[at : at + 4], byteorder) for at in steps]
            payload = bytearray(int.from_bytes(head[1:], "big"))
            rest = memoryview(payload)
            while rest:
                count = self._receive_into(rest)
                if not count:
                    _exit(0)
                rest = rest[count:]
        except BaseException:
            # The runner is gone, or the client has closed the channel. The rest of a message would be taken for another one.
            _exit(1)
        return head[:1], payload, descriptors

    def send(self, kind, *parts):
        if not self.is_ours():
            return
        content = b"".join(parts)
        is_shielded = get_ident() == _main_thread and signals.close()
        try:
            # An interrupted message would end the session.
            with self._lock:
                self._send(kind + len(content).to_bytes(4, "big") + content)
        except OSError:
            _exit(1)
        finally:
            if is_shielded:
                signals.open()


def has_message(look):
    """Whether a socket, whose `recv` this is given, has a message or the end."""
    try:
        look(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        # The next read ends the process.
        pass
    return True


class Signals:
    def __init__(self):
        self._are_open, self._came = False, False
        # Bound once, so that it can be recognized.
        self._quiet = self._note
        self._interrupt = set_handler(SIGINT, self._quiet)
        # `kernel.py` has shut interrupts out.
        self._mask = pthread_sigmask(SIG_BLOCK, _EVERY_SIGNAL) - {SIGINT}
        self._trace = self._profile = None

    def _note(self, number, frame):
        # Only in a process with threads, one of which has got the signal.
        self._came = True

    def forget_interrupts(self):
        """An interrupt that came while no cell ran does nothing."""
        while SIGINT in sigpending():
            sigtimedwait([SIGINT], 0)
        self._came = False

    def replace(self, handler):
        """Has interrupts go to another handler when signals are let through. Returns the one before."""
        before, self._interrupt = self._interrupt, handler
        return before

    def open(self):
        """Lets signals through for the client's code."""
        self._are_open = True
        if self._interrupt is not None:
            set_handler(SIGINT, self._interrupt)
        if self._came:
            self._came = False
            kill(getpid(), SIGINT)
        if self._trace or self._profile:
            settrace(self._trace)
            setprofile(self._profile)
        pthread_sigmask(SIG_SETMASK, self._mask)

    def close(self):
        """Lets none through. Returns whether they were let through before."""
        if not self._are_open:
            return False
        trace, profile, mask = gettrace(), getprofile(), None
        if trace or profile:
            settrace(None)
            setprofile(None)
        came = False
        while self._are_open:
            # Each of these calls raises what a handler of the client raises for a signal that came just before.
            try:
                if mask is None:
                    mask = pthread_sigmask(SIG_BLOCK, ())
                interrupt = getsignal(SIGINT)
                if interrupt is not self._quiet:
                    if interrupt is not None:
                        set_handler(SIGINT, self._quiet)
                    self._interrupt = interrupt
                pthread_sigmask(SIG_BLOCK, _EVERY_SIGNAL)
                self._are_open = False
            except KeyboardInterrupt:
                came = True
            except BaseException:
                pass
        self._came = self._came or came
        self._mask, self._trace, self._profile = mask, trace, profile
        return True


def guarded(step):
    """Runs a step of the client's code, which signals reach. Returns the exception that ended it, or None."""
    failure = None
    try:
        try:
            signals.open()
            step()
        finally:
            signals.close()
    except BaseException as error:
        failure = error
        # An interrupt can come between the lines above.
        signals.close()
    return failure


_main_thread = get_ident()
signals = Signals()
