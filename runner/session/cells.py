"""Takes cells from the runner and runs them, with a checkpoint of the process before each.

A checkpoint is the parent of a fork. It waits and runs nothing of the client until it is resumed. The child is the session from
then on, with a channel of its own.

Numbers are big endian, and texts are in UTF-8. The runner sends:

- ``C`` for a cell: four bytes for its number, one byte of flags (1: make a checkpoint), its code. With the flag 4, two bytes for
  the columns of a terminal come before the code. With the flag 8 come variables that are set only for this cell: four bytes for their
  length, and each as ``NAME=value`` and a null character. With the flag 16 a program gets what the cell shows: an exception is shown
  instead of printed, and `programs.py` adds forms. Three descriptors come along: the pipes for its standard output and error, and
  the channel for the process that runs it if there is a checkpoint.
- ``G`` to have the code of the cell run, after ``s``. By then the server knows that the cell has started: the code can stop the runner
  with its first statement.
- ``P`` to have the checkpoint of the next cell made now. One byte says whether that cell follows at once (1), so that no task of an
  earlier one may run before. One descriptor comes along: the channel for the process that will run that cell.
- ``R`` to a checkpoint: its child is gone, and this process is the session again, as it was before. Two descriptors come along: the
  pipes for what its threads and tasks print until the next cell. A ``P`` follows, before which no task runs: one that keeps a cell from
  beginning would also keep this checkpoint from being one again.
- ``Q`` for the names that the word before the cursor of a prompt may become: the text before it.
- The end, when it needs the process no longer. Nothing of the client runs then, and nothing is flushed.

The kernel sends:

- ``r`` when it can take cells, with the interpreter's version. `kernel.py` does this.
- ``l`` when it has loaded what cells need, unless that was prepared.
- ``s`` when the code of a cell can run: 0 if a checkpoint was made now, and otherwise why not, as one of the codes below. The process
  that will run the cell sends it, and waits for ``G``. After a ``P`` that made one, none is made now.
- ``p`` for ``P``, with the same. The process that will run the next cell sends it.
- ``q`` for ``Q``: four bytes for the place in the text, in bytes, where the word begins, and the names, each its length (two bytes)
  and the name.
- ``d`` for a thing that a cell shows: 1 for the value of the cell, 0 for something else, and its forms. Each is the length of its media
  type (two bytes), the media type, the length of its content (four bytes), the content.
- ``e`` at the end of a cell: how it ended (0 by itself, 1 by an exception, 2 by an interrupt, 3 because it asked for that), and four
  bytes for its exit code (signed). Everything that it has printed is in its pipes before, also the exception.
"""

import posix
import sys
from posix import _exit, close, dup2, fork, fstat, getpid, kill, listdir, lseek, read, readlink, setsid, stat, waitid, waitpid, write
from posix import open as open_file

from _random import Random
from _signal import SIGCHLD, SIGKILL, getitimer, sigpending, sigtimedwait

_FLAG_CHECKPOINT, _FLAG_COLUMNS, _FLAG_VARIABLES, _FLAG_FOR_PROGRAM = 1, 4, 8, 16
# How a cell ended.
_ENDED, _FAILED, _INTERRUPTED, _EXITED = range(4)
_INTERRUPTED_CODE = 130
_LEAST_CODE, _GREATEST_CODE = -(1 << 31), (1 << 31) - 1
# Why there is no checkpoint.
(
    _THREADS,
    _UNCOUNTED_THREADS,
    _PROCESSES,
    _TIMER,
    _LOCK,
    _NO_PROCESS,
    _NOT_ASKED,
) = range(1, 8)
# When memory runs out, Linux ends a cell that runs before its checkpoints.
_SCORE_RUNNING, _SCORE_WAITING = b"900", b"500"
# Maximum number of open files whose positions a checkpoint remembers.
_MOST_FILES = 256
# Of the system's calls. A cell can replace them in their module.
_READ, _WRITE, _READ_WRITE = (mode | posix.O_CLOEXEC for mode in [posix.O_RDONLY, posix.O_WRONLY, posix.O_RDWR])
_NO_WAIT, _ANY_CHILD, _HAS_ENDED = posix.WNOHANG, posix.P_ALL, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT
_REGULAR, _KIND_OF_FILE = 0o100000, 0o170000
# Seconds for which the kernel waits for a message before tasks of earlier cells go on: the runner has the next checkpoint made as
# soon as a cell has ended.
_BEFORE_TURNING = 0.1
# None go on before the next message.
_NO_TURN = None
# Returned in a checkpoint that is the session again.
_UNDONE = object()

_channels = load("channel")
_guarded, _signals = _channels["guarded"], _channels["signals"]


def prepare(main, modules):
    """Loads what cells need, and does once what first cells do. Returns a session, whose channel is not connected yet. `modules` are
    those that were imported before."""
    session = _new_session(main)
    session.modules = modules
    for step in _steps(session):
        step()
    session.cells.rehearse(lambda: False)
    return session


def _new_session(main):
    return load("session")["Session"](_channels["Channel"](), main)


def _steps(session):
    """Steps that load what cells need, each of which a first cell would wait for."""
    return [lambda: load("forms"), lambda: load("errors"), lambda: session.cells]


def _load_all(session, is_awaited):
    """Loads what cells need, and does once what first cells do, unless a cell waits for it. It comes before the first checkpoint is made:
    what is loaded after that would be lost with the cell, and loaded again."""

    def rehearse():
        if not is_awaited():
            session.cells.rehearse(is_awaited)
        if not is_awaited():
            # As in a template. A collection would write to all of it, and a process that has a checkpoint copies what it writes to.
            gc = library("gc")
            gc.collect()
            gc.freeze()

    for step in [*_steps(session), rehearse]:
        try:
            # Without signals: the runner may send one to a kernel that takes long to begin.
            step()
        except Exception:
            # The cell gets the error when it needs what is missing.
            pass


def serve(socket, main, session=None):
    """Runs cells until the runner closes the channel, in a session that may be prepared. Never returns."""
    was_loaded, before_turning = session is not None, _BEFORE_TURNING
    if not was_loaded:
        session = _new_session(main)
        # It has no channel yet, so nothing that this shows is sent.
        _load_all(session, lambda: _channels["has_message"](socket.recv))
    channel = session.channel
    channel.connect(socket)
    session.packages = _packages()
    if not was_loaded:
        channel.send(b"l")
    while True:
        try:
            if before_turning is not _NO_TURN:
                session.loop.turn(before_turning)
        except BaseException:
            # A cell has broken it. The next one has to come all the same.
            pass
        kind, payload, descriptors = channel.receive()
        try:
            before, before_turning = before_turning, _BEFORE_TURNING
            if kind == b"C":
                if _take(session, channel, payload, descriptors) is _UNDONE:
                    before_turning = _NO_TURN
            elif kind == b"P":
                before_turning = _prepare(session, channel, payload == b"\1", *descriptors)
            elif kind == b"Q":
                before_turning = before
                _complete(session, channel, payload.decode(errors="replace"))
        except BaseException as error:
            # Something that a cell has broken here. The runner must not wait forever.
            _guarded(lambda: session.complain("The kernel has failed: %s\n" % type(error).__name__))
            _end(channel, _FAILED, 1)


def _packages():
    """Which set of packages the sandbox has: another one is another file system, or another link."""
    try:
        return readlink("/dev/shm/.isolator-packages")
    except OSError:
        pass
    try:
        there = stat("/.isolator/packages")
    except OSError:
        return None
    return there.st_dev, there.st_ino


def _take(session, channel, payload, descriptors):
    number, flags, source = int.from_bytes(payload[:4], "big"), payload[4], payload[5:]
    session.columns = None
    if flags & _FLAG_COLUMNS:
        session.columns, source = int.from_bytes(source[:2], "big"), source[2:]
    variables = None
    if flags & _FLAG_VARIABLES:
        end = 4 + int.from_bytes(source[:4], "big")
        variables, source = source[4:end], source[end:]
    session.is_for_program = bool(flags & _FLAG_FOR_PROGRAM)
    source = source.decode(errors="replace")
    output, errors, fresh = descriptors
    dup2(output, 1)
    dup2(errors, 2)
    close(output)
    close(errors)
    if flags & _FLAG_CHECKPOINT:
        reason = _make_checkpoint(session, channel, fresh)
        if reason is _UNDONE:
            return reason
    else:
        reason = _NOT_ASKED
        close(fresh)
    _score(_SCORE_RUNNING)
    _signals.forget_interrupts()
    _tell(channel, b"s", reason)
    # The runner lets it go.
    channel.receive()
    before, failures = {}, {}
    # An earlier cell may have replaced `os.environ` or `sys.path`.
    if variables:
        failures["The variables for this cell could not be set"] = _guarded(lambda: load("variables")["put"](variables, before))
    found = _packages()
    if found != session.packages:
        failure = failures["The path of modules could not get the installed packages"] = _guarded(lambda: load("installed")["adopt"]())
        if failure is None:
            session.packages = found
    if any(isinstance(failure, KeyboardInterrupt) for failure in failures.values()):
        # The cell was interrupted before its code.
        end = _INTERRUPTED, _INTERRUPTED_CODE
    else:
        for what, failure in failures.items():
            if failure is not None:
                session.complain("%s: %s\n" % (what, type(failure).__name__))
        end = _run(session, number, source)
    if before:
        _guarded(lambda: load("variables")["take_back"](before))
    if not channel.is_ours():
        # The client has forked, and in the fork its code has come to its end, too.
        _exit(end[1] & 0xFF)
    _keep_standard_descriptors()
    _score(_SCORE_WAITING)
    _end(channel, *end)


def _prepare(session, channel, cell_follows, fresh):
    """Makes the checkpoint for the next cell ahead: a fork takes longer than most cells. Returns when tasks may go on."""
    reason = _make_checkpoint(session, channel, fresh)
    if reason is _UNDONE:
        return _NO_TURN
    _tell(channel, b"p", reason)
    if reason is None and not channel.has_message():
        try:
            session.cells.warm_up()
        except Exception:
            # A cell has broken what the next one needs, and will be told.
            pass
    return _NO_TURN if cell_follows else 0


def _complete(session, channel, text):
    start, names = len(text), []
    try:
        start, names = load("complete")["complete"](session, text, session.cells.magics())
    except Exception:
        # A cell has broken what this needs. There are no names then.
        pass
    parts = [name.encode(errors="replace") for name in names]
    lengths = [len(part).to_bytes(2, "big") for part in parts]
    channel.send(b"q", len(text[:start].encode()).to_bytes(4, "big"), *(piece for pair in zip(lengths, parts) for piece in pair))


def _tell(channel, kind, reason):
    """Tells whether there is a checkpoint, or why not."""
    channel.send(kind, bytes([reason or 0]))


def _make_checkpoint(session, channel, fresh):
    """Forks. Returns None in the process that is to run the cell, with `fresh` as its channel. The checkpoint returns only when
    that cell was undone. Returns the reason if there is no fork."""
    session.loop.release()
    files = _positions()
    reason = _why_unfaithful(files)
    if reason is not None:
        close(fresh)
        return reason
    state = _random_state()
    try:
        child = fork()
    except OSError:
        close(fresh)
        return _NO_PROCESS
    if child:
        close(fresh)
        _wait(channel, child)
        for number, position in files:
            try:
                lseek(number, position, 0)
            except OSError:
                pass
        # One that the runner has sent to a kernel that is slow would end this before its first step.
        _signals.forget_interrupts()
        _guarded(session.loop.go_back)
        return _UNDONE
    setsid()
    channel.replace(fresh)
    if state:
        # The module draws a new seed in each fork, and this one is the session going on.
        generator, numbers, gauss_next = state
        Random.setstate(generator, numbers)
        generator.gauss_next = gauss_next
    return None


def _wait(channel, child):
    """Waits as a checkpoint until the process that runs the cell is gone."""
    null = open_file("/dev/null", _READ_WRITE)
    dup2(null, 1)
    dup2(null, 2)
    close(null)
    _score(_SCORE_WAITING)
    while True:
        kind, _, descriptors = channel.receive()
        for number, stream in zip(descriptors, [1, 2] if kind == b"R" else []):
            dup2(number, stream)
        for number in descriptors:
            close(number)
        if kind == b"R":
            break
    try:
        if waitpid(child, _NO_WAIT) == (0, 0):
            kill(child, SIGKILL)
            waitpid(child, 0)
    except ChildProcessError:
        # The client ignores the ends of its processes, so the kernel reaps them.
        pass
    # The client's handler must not be called for a process that is not the client's.
    while SIGCHLD in sigpending():
        sigtimedwait([SIGCHLD], 0)


def _why_unfaithful(files):
    """Returns why a fork would not be the same as this process, or None. `files` are those that it has open."""
    try:
        if len(listdir("/proc/self/task")) > 1:
            return _THREADS
    except OSError:
        return _UNCOUNTED_THREADS
    try:
        waitid(_ANY_CHILD, 0, _HAS_ENDED)
        return _PROCESSES
    except ChildProcessError:
        pass
    if any(getitimer(kind)[0] for kind in range(3)):
        return _TIMER
    if not files:
        return None
    # Looking at the locks takes milliseconds, because the system waits for all its cores.
    try:
        file = open_file("/proc/locks", _READ)
    except OSError:
        return None
    locks, pid = read(file, 1 << 16), str(getpid()).encode()
    close(file)
    # Locks of this kind belong to a process, and a fork does not have them.
    if any(fields[1:2] == [b"POSIX"] and fields[4:5] == [pid] for fields in map(bytes.split, locks.splitlines())):
        return _LOCK
    return None


def _positions():
    """The descriptors of open files with their positions, which a fork shares."""
    found = []
    for name in listdir("/proc/self/fd")[:_MOST_FILES]:
        try:
            if fstat(int(name)).st_mode & _KIND_OF_FILE == _REGULAR:
                found.append((int(name), lseek(int(name), 0, 1)))
        except OSError:
            pass
    return found


def _random_state():
    generator = getattr(sys.modules.get("random"), "_inst", None)
    if isinstance(generator, Random):
        return generator, Random.getstate(generator), getattr(generator, "gauss_next", None)
    return None


def _score(value):
    try:
        file = open_file("/proc/self/oom_score_adj", _WRITE)
    except OSError:
        return
    try:
        write(file, value)
    except OSError:
        pass
    close(file)


def _keep_standard_descriptors():
    """Opens standard streams that the client has closed. Otherwise the next cell's descriptors would get their numbers."""
    for number in range(3):
        try:
            fstat(number)
        except OSError:
            null = open_file("/dev/null", _READ_WRITE)
            dup2(null, number)
            if null != number:
                close(null)


def _run(session, number, source):
    """Runs a cell. Returns how it ended, and its exit code."""
    ends = []
    failure = _guarded(lambda: ends.append(session.run(number, source))) or (ends and ends[0]) or None
    if "matplotlib._pylab_helpers" in sys.modules:
        not_shown = _guarded(session.show_figures)
        # The error that ended the cell says more.
        failure = failure or not_shown
    not_settled = _guarded(session.loop.settle)
    failure = failure or not_settled
    _guarded(session.flush)
    if failure is None:
        return _ENDED, 0
    _signals.forget_interrupts()
    reports = []
    _guarded(lambda: reports.append(session.cells.report(failure)))
    if not reports:
        _guarded(lambda: reports.append(load("errors")["one_line"](failure) + "\n"))
    report = reports[0] if reports else type(failure).__name__ + "\n"
    if session.is_for_program:
        _guarded(lambda: session.send([load("programs")["error"](failure, report)]))
    if isinstance(failure, SystemExit):
        return _exited(session, failure)
    if not session.is_for_program:
        session.complain(report)
    if isinstance(failure, KeyboardInterrupt):
        return _INTERRUPTED, _INTERRUPTED_CODE
    return _FAILED, 1


def _exited(session, failure):
    code = failure.code
    if code is None:
        return _EXITED, 0
    if isinstance(code, int):
        # A class of the client can have its own way to become a number.
        code = int.__index__(code)
        return _EXITED, code if _LEAST_CODE <= code <= _GREATEST_CODE else -1
    is_empty = type(code) is str and not code
    if not is_empty and not session.is_for_program:
        parts = []
        _guarded(lambda: parts.append(str(code)))
        session.complain("%s\n" % "".join(parts))
    return _EXITED, 1


def _end(channel, how, code):
    channel.send(b"e", bytes([how]), code.to_bytes(4, "big", signed=True))
