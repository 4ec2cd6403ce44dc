"""The event loop of a Python session: it lives across cells, and turns between them. It needs no engine."""

import os
import threading
import time

import pytest
from kernel import Gone, ended
from processes import cpu_seconds

pytestmark = pytest.mark.any_engine
WITHIN_S = 10


def background(runner, text, stream=0):
    """Waits for output that comes after the end of the last cell. Returns all of it."""
    until, found = time.monotonic() + WITHIN_S, b""
    os.set_blocking(runner.kept[stream], False)
    while text.encode() not in found:
        assert time.monotonic() < until, found
        try:
            found += os.read(runner.kept[stream], 1 << 16)
        except BlockingIOError:
            time.sleep(0.002)
    return found.decode()


def wait_for(path):
    until = time.monotonic() + WITHIN_S
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.002)


# What works in a cell.


def test_cells_await(runner):
    runner.run("import asyncio\nqueue = asyncio.Queue()")
    code = "async def numbers():\n    for n in range(3):\n        await asyncio.sleep(0)\n        yield n"
    runner.run(code)
    runner.run("found = []\nasync for n in numbers():\n    found.append(n)")
    assert runner.run("found + [n async for n in numbers()]").text == "[0, 1, 2, 0, 1, 2]"
    code = "class C:\n    async def __aenter__(self): return 'in'\n    async def __aexit__(self, *_): print('out')"
    runner.run(code)
    assert runner.run("async with C() as c:\n    print(c)").out == "in\nout\n"
    assert runner.run("await asyncio.gather(*[asyncio.sleep(0, n) for n in range(3)])").text == "[0, 1, 2]"


SYNCHRONOUS = {
    "create_task": ("task = asyncio.create_task(five())", "await task"),
    "in a function": ("def start():\n    return asyncio.get_running_loop().create_task(five())\ntask = start()", "await task"),
    "ensure_future": ("task = asyncio.ensure_future(five())", "await task"),
    "gather": ("both = asyncio.gather(five(), five())", "(await both)[0]"),
    "future": ("future = asyncio.Future()\nasyncio.get_event_loop().call_later(0.01, future.set_result, 5)", "await future"),
    "timer": ("found = []\nasyncio.get_running_loop().call_soon(found.append, 5);", "found[0]"),
    "run": ("", "asyncio.run(five())"),
    "Runner": ("", "with asyncio.Runner() as runner:\n    found = runner.run(five())\nfound"),
    "run_until_complete": ("", "asyncio.get_event_loop().run_until_complete(five())"),
    "a loop of its own": ("own = asyncio.new_event_loop()\nown.run_until_complete(five())", "own.run_until_complete(five())"),
    "run_forever": ("loop = asyncio.get_event_loop()\nloop.call_later(0.01, loop.stop)\nloop.run_forever()", "5"),
    "run, then a task": ("asyncio.run(five())\ntask = asyncio.create_task(five())", "await task"),
    "run in a thread": ("import threading", "x = []\nt = threading.Thread(target=lambda: x.append(asyncio.run(five())))\nt.start(); t.join()\nx[0]"),
    "run_coroutine_threadsafe": (
        "import threading\ndef work(loop): print(asyncio.run_coroutine_threadsafe(five(), loop).result())\n"
        "thread = threading.Thread(target=work, args=[asyncio.get_running_loop()]); thread.start()",
        "await asyncio.to_thread(thread.join)\n5",
    ),
}


@pytest.mark.parametrize("name", SYNCHRONOUS)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_code_outside_of_coroutines_uses_the_loop_of_the_session(runner, name, checkpoint):
    ended(runner.run("import asyncio\nasync def five():\n    await asyncio.sleep(0)\n    return 5"))
    first, second = SYNCHRONOUS[name]
    cell = ended(runner.run(first, checkpoint))
    assert cell.err == ""
    for _ in range(1 if name in ("in a function", "create_task") else 2):
        cell = ended(runner.run(second, checkpoint))
        assert (cell.text.splitlines()[-1], cell.err) == ("5", "")


def test_the_first_cell_with_asyncio_has_the_loop(runner):
    cell = ended(runner.run("import sys\nassert 'asyncio' not in sys.modules\nimport asyncio\nt = asyncio.create_task(asyncio.sleep(0, 5))"))
    assert ended(runner.run("await t")).text == "5"
    assert cell.err == ""


def test_a_cell_that_awaits_starts_no_other_loop(runner):
    cell = runner.run("import asyncio\nasync def f(): asyncio.run(asyncio.sleep(0))\nawait f()")
    assert cell.error == "RuntimeError: asyncio.run() cannot be called from a running event loop"
    assert ended(runner.run("asyncio.run(asyncio.sleep(0, 5))")).text == "5"


def test_code_outside_of_a_coroutine_is_in_no_task(runner):
    """Otherwise, `anyio.run` would refuse to run there."""
    ended(runner.run("import asyncio\nasync def f(): return asyncio.current_task() is not None"))
    assert ended(runner.run("asyncio.current_task(), asyncio.run(f())")).text == "(None, True)"
    assert ended(runner.run("await f()")).text == "True"


def test_things_of_one_loop_are_used_by_many_cells(runner):
    """Queues, locks, groups and timeouts belong to the loop in which they were used first."""
    cells = [
        "import asyncio\nqueue, lock, event = asyncio.Queue(1), asyncio.Lock(), asyncio.Event()\nfound = []",
        "async def work():\n    while (n := await queue.get()) is not None:\n        async with lock:\n            found.append(n)\n"
        "    event.set()\nworker = asyncio.create_task(work())",
        "for n in range(3):\n    await queue.put(n)",
        "await lock.acquire(); await queue.put(3)",
        "lock.release()",
        "await queue.put(None)\nawait asyncio.wait_for(event.wait(), 5)",
        "async with asyncio.TaskGroup() as group:\n    group.create_task(asyncio.sleep(0)); group.create_task(asyncio.sleep(0))",
        "try:\n    async with asyncio.timeout(0.01):\n        await asyncio.sleep(9)\nexcept TimeoutError:\n    found.append('late')",
        "async def numbers():\n    for n in range(3):\n        await asyncio.sleep(0)\n        yield n\nnumbers_left = numbers()",
        "found.append(await anext(numbers_left))",
        "found.append(await anext(numbers_left))",
    ]
    for code in cells:
        assert ended(runner.run(code, checkpoint=True)).err == ""
    assert runner.run("found").text == "[0, 1, 2, 3, 'late', 0, 1]"


def test_variables_of_the_context_stay(runner):
    ended(runner.run("import asyncio, contextvars, decimal\nv = contextvars.ContextVar('v', default=0)"))
    ended(runner.run("v.set(1)\ndecimal.getcontext().prec = 9\nawait asyncio.sleep(0)", checkpoint=True))
    assert ended(runner.run("v.get(), decimal.getcontext().prec, await asyncio.sleep(0, v.get())", checkpoint=True)).text == "(1, 9, 1)"


SERVER = """
import asyncio
async def answer(reader, writer):
    while line := await reader.readline():
        writer.write(b"got " + line)
        await writer.drain()
    ends.append(1)
    writer.close()
ends = []
server = await asyncio.start_server(answer, "127.0.0.1", 0)
port = server.sockets[0].getsockname()[1]
"""


def test_a_server_serves_later_cells_and_its_connections_end(runner):
    """Although checkpoints share its sockets."""
    ended(runner.run(SERVER, checkpoint=True))
    ended(runner.run("reader, writer = await asyncio.open_connection('127.0.0.1', port)", checkpoint=True))
    ask = "writer.write(b'it\\n')\nawait reader.readline()"
    for _ in range(2):
        assert ended(runner.run(ask, checkpoint=True)).text == "b'got it\\n'"
        runner.undo()
    ended(runner.run("writer.close()\nawait writer.wait_closed()\nwhile not ends: await asyncio.sleep(0.001)", checkpoint=True))
    again = "server = await asyncio.start_server(answer, '127.0.0.1', port)"
    assert "address already in use" in runner.run(again, checkpoint=True).error
    ended(runner.run(f"server.close()\nawait server.wait_closed()\n{again}", checkpoint=True))
    ended(runner.run(f"server.close()\nawait server.wait_closed()\n{again}", checkpoint=True))
    # The server that the undone cells have closed serves again.
    for _ in range(2):
        runner.undo()
        ended(runner.run("1"))
    ended(runner.run("reader, writer = await asyncio.open_connection('127.0.0.1', port)", checkpoint=True))
    assert ended(runner.run(ask, checkpoint=True)).text == "b'got it\\n'"


def test_a_blocking_client_in_a_later_cell_is_served_by_a_thread(runner):
    ended(runner.run(SERVER))
    code = "import socket\ndef ask():\n    with socket.create_connection(('127.0.0.1', port)) as s:\n        s.sendall(b'it\\n')\n        return s.recv(99)\n"
    assert ended(runner.run(code + "await asyncio.to_thread(ask)")).text == "b'got it\\n'"


def test_executors_and_processes_leave_checkpoints_possible(runner):
    ended(runner.run("import asyncio, threading"))
    code = "await asyncio.gather(asyncio.to_thread(int), asyncio.get_running_loop().run_in_executor(None, int))"
    for _ in range(2):
        assert ended(runner.run(code, checkpoint=True)).checkpoint
    assert ended(runner.run("threading.active_count()", checkpoint=True)).text == "1"
    code = "p = await asyncio.create_subprocess_exec('sh', '-c', 'echo it; exit 3', stdout=asyncio.subprocess.PIPE)\n"
    assert ended(runner.run(code + "(await p.communicate())[0], p.returncode", checkpoint=True)).text == "(b'it\\n', 3)"
    # One that runs is a reason.
    ended(runner.run("p = await asyncio.create_subprocess_exec('cat', stdin=asyncio.subprocess.PIPE)", checkpoint=True))
    assert ended(runner.run("1", checkpoint=True)).why_not in ("processes", "threads")
    assert ended(runner.run("p.stdin.close()\nawait p.wait()", checkpoint=True)).text == "0"
    assert ended(runner.run("1", checkpoint=True)).checkpoint
    ended(runner.run("import time\nwaits = asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.3)"))
    assert ended(runner.run("await waits", checkpoint=True)).why_not == "threads"
    # Its thread ends a moment later.
    assert any(ended(runner.run("time.sleep(0.02)", checkpoint=True)).checkpoint for _ in range(100))


def test_an_executor_of_the_client_stays(runner):
    ended(runner.run("import asyncio, concurrent.futures\nmine = concurrent.futures.ThreadPoolExecutor(1)"))
    ended(runner.run("asyncio.get_running_loop().set_default_executor(mine)\nawait asyncio.to_thread(int)"))
    assert ended(runner.run("1", checkpoint=True)).why_not == "threads"
    assert ended(runner.run("await asyncio.to_thread(int), mine.submit(int).result()")).text == "(0, 0)"


# Between cells.

TICK = "import asyncio\nasync def tick():\n    while True:\n        print('tick')\n        await asyncio.sleep(0.005)\ntask = asyncio.create_task(tick())"


@pytest.mark.parametrize("is_prepared", [False, True])
def test_tasks_go_on_between_cells(runner, is_prepared):
    assert ended(runner.run(TICK, checkpoint=True)).out == "tick\n"
    if is_prepared:
        assert runner.prepare() == ""
    background(runner, "tick\n" * 3)
    assert ended(runner.run("await asyncio.sleep(0.1)", checkpoint=not is_prepared)).out.count("tick") > 3
    runner.undo()
    assert runner.prepare() == ""
    background(runner, "tick")
    assert runner.run("task.cancel()").text == "True"
    assert ended(runner.run("await asyncio.sleep(0.02)\ntask.cancelled()")).text == "True"


# A task that keeps cells from beginning would keep the checkpoint from being the session again, and then the cell of the checkpoint.
@pytest.mark.parametrize("cell_follows", [False, True])
def test_no_task_goes_on_after_an_undo_until_there_is_a_checkpoint_and_its_cell_has_run(runner, tmp_path, cell_follows):
    late = "import asyncio\nasync def late():\n    await asyncio.sleep(0.2)\n    open('late', 'w').close()\ntask = asyncio.create_task(late())"
    ended(runner.run(late, checkpoint=True))
    assert runner.prepare() == ""
    wait_for(tmp_path / "late")
    (tmp_path / "late").unlink()
    runner.undo()
    time.sleep(0.4)
    assert not (tmp_path / "late").exists()
    assert runner.prepare(cell_follows) == ""
    if cell_follows:
        time.sleep(0.4)
        assert ended(runner.run("import os\nos.path.exists('late')")).text == "False"
    wait_for(tmp_path / "late")


def test_what_is_shown_between_cells_arrives(runner):
    ended(runner.run("import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    display(5)\n    print('shown')\nt = asyncio.create_task(f())"))
    background(runner, "shown")
    kind, payload = runner._message(runner.channels[-1])
    assert (kind, runner._forms(payload[1:])["text/plain"]) == (b"d", b"5")


def test_nothing_turns_without_work(runner):
    ended(runner.run("import asyncio\nawait asyncio.sleep(0)"))
    time.sleep(0.2)
    before = cpu_seconds(runner.pids[-1])
    time.sleep(0.3)
    assert cpu_seconds(runner.pids[-1]) - before < 0.02
    # Waiting for a connection takes none either.
    ended(runner.run(SERVER))
    time.sleep(0.2)
    before = cpu_seconds(runner.pids[-1])
    time.sleep(0.3)
    assert cpu_seconds(runner.pids[-1]) - before < 0.02


def test_failures_of_tasks_are_printed(runner):
    fail = "import asyncio, sys\nasync def fail():\n    await asyncio.sleep(0.01)\n    raise {0}\nasyncio.create_task(fail());"
    ended(runner.run(fail.format("ValueError('why')")))
    found = background(runner, "ValueError: why", 1)
    assert "Task exception was never retrieved" in found and "session/" not in found
    for end in ["SystemExit(3)", "KeyboardInterrupt"]:
        ended(runner.run(fail.format(end) + "\nt = asyncio.create_task(asyncio.sleep(0.2, 5))"))
        found = background(runner, end.partition("(")[0], 1)
        assert "in fail" in found and "session/" not in found and "run_forever" not in found
        assert ended(runner.run("await t")).text == "5"


def test_a_task_that_exits_at_once_ends_its_cell(runner):
    cell = runner.run("import asyncio, sys\nasync def leave(): sys.exit(3)\nt = asyncio.create_task(leave())")
    assert (cell.how, cell.code) == ("exited", 3)
    assert ended(runner.run("1")).text == "1"


def test_a_fork_in_a_task_takes_no_messages_of_the_session(runner):
    code = "import asyncio, os\nasync def f():\n    await asyncio.sleep(0.01)\n    pid = os.fork()\n"
    code += "    if pid:\n        print(os.waitpid(pid, 0)[1])\nt = asyncio.create_task(f())"
    ended(runner.run(code, checkpoint=True))
    background(runner, "0\n")
    assert ended(runner.run("1", checkpoint=True)).text == "1"


HANDLERS = {"usual": "", "own": "import signal\ndef own(*_):\n    raise KeyboardInterrupt\nsignal.signal(2, own);"}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_an_interrupt_reaches_a_cell_after_the_loop_has_turned(runner, tmp_path, handler):
    ended(runner.run(handler))
    ended(runner.run("import asyncio, time\nasync def tick():\n    while True:\n        await asyncio.sleep(0.01); open('turned', 'w')"))
    ended(runner.run("ticks = asyncio.create_task(tick())"))
    wait_for(tmp_path / "turned")
    finish = runner.start("open('began', 'w').close()\ntime.sleep(60)")
    wait_for(tmp_path / "began")
    runner.interrupt()
    cell = finish()
    assert (cell.how, "in own" in cell.err) == ("interrupted", bool(handler))


@pytest.mark.parametrize("end", ["raise SystemExit(4)", "raise KeyboardInterrupt"])
def test_a_task_that_ends_a_cell_does_not_stop_the_loop_of_the_next(runner, end):
    code = f"import asyncio\nasync def bad():\n    {end}\nasync def good():\n    await asyncio.sleep(0)\n"
    cell = runner.run(code + "tasks = [asyncio.create_task(bad()), asyncio.create_task(good())]")
    assert cell.how in ("exited", "interrupted")
    assert ended(runner.run("asyncio.get_event_loop().run_until_complete(asyncio.sleep(0.02, 5))")).text == "5"


def test_a_task_that_keeps_the_next_cell_from_beginning_is_interrupted(runner, tmp_path):
    code = "import asyncio, time\nasync def busy():\n    await asyncio.sleep(0.01)\n    open('busy', 'w').close()\n    {0}\n"
    code += "other = asyncio.create_task(asyncio.sleep(0.02, 5))\nbusy_task = asyncio.create_task(busy())"
    for body in ["while True: pass", "time.sleep(60)"]:
        ended(runner.run(code.format(body), checkpoint=True))
        wait_for(tmp_path / "busy")
        (tmp_path / "busy").unlink()
        # Without a cell that waits, an interrupt means nothing.
        runner.interrupt()
        time.sleep(0.05)
        pid = runner.pids[-1]
        timer = threading.Timer(0.1, lambda: os.kill(pid, 2))
        kept = runner.kept
        runner.kept = []
        timer.start()
        cell = ended(runner.run("await other", checkpoint=True))
        assert cell.text == "5"
        found = os.read(kept[1], 1 << 16).decode()
        assert "A task that kept the next cell from beginning was interrupted.\n" in found and "in busy" in found
        for end in kept:
            os.close(end)


def test_a_task_that_keeps_the_kernel_from_a_checkpoint_is_interrupted(runner, tmp_path):
    code = "import asyncio, threading, time\nasync def busy():\n    await asyncio.sleep(0.01)\n    open('busy', 'w').close()\n    time.sleep(60)\n"
    ended(runner.run(code + "thread = threading.Thread(target=time.sleep, args=[60], daemon=True)\nthread.start()\nt = asyncio.create_task(busy())"))
    wait_for(tmp_path / "busy")
    pid = runner.pids[-1]
    threading.Timer(0.1, lambda: os.kill(pid, 2)).start()
    assert runner.prepare() == "threads"
    assert "in busy" in background(runner, "A task that kept the next cell from beginning was interrupted.\n", stream=1)
    # One that comes too late means nothing.
    runner.interrupt()
    assert ended(runner.run("t.done(), await asyncio.sleep(0.01, 5)")).text == "(True, 5)"


# Interrupts.

INTERRUPTED = {
    "sleep": "await asyncio.sleep(60)",
    "computation": "async def f():\n    while True: pass\nawait f()",
    "task that computes": "async def f():\n    while True: pass\nawait asyncio.create_task(f())",
    "gather": "await asyncio.gather(asyncio.sleep(60), asyncio.sleep(60))",
    "lock": "lock = asyncio.Lock()\nawait lock.acquire()\nasync with lock: pass",
    "queue": "await asyncio.Queue().get()",
    "timeout": "async with asyncio.timeout(50):\n    await asyncio.sleep(60)",
    "group": "async with asyncio.TaskGroup() as group:\n    group.create_task(asyncio.sleep(60))",
    "generator": "async def f():\n    while True:\n        await asyncio.sleep(0.001)\n        yield 1\nasync for _ in f(): pass",
    "busy loop": "while True: await asyncio.sleep(0)",
    "thread": "import threading\nevent = threading.Event()\ntry:\n    await asyncio.to_thread(event.wait)\nfinally:\n    event.set()",
    "process": "process = await asyncio.create_subprocess_exec('sleep', '60')\ntry:\n    await process.wait()\nfinally:\n    process.kill()\n    await process.wait()",
    "run": "asyncio.run(asyncio.sleep(60))",
    "run_until_complete": "asyncio.get_event_loop().run_until_complete(asyncio.sleep(60))",
    "run_forever": "asyncio.get_event_loop().run_forever()",
    "connection": "await (await asyncio.start_server(print, '127.0.0.1', 0)).serve_forever()",
}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupt_ends_the_cell_and_not_the_tasks(runner, tmp_path, name):
    ended(runner.run(f"{TICK}\nx = 1", checkpoint=True))
    finish = runner.start(f"open('began', 'w').close()\nx = 2\n{INTERRUPTED[name]}")
    wait_for(tmp_path / "began")
    time.sleep(0.05)
    runner.interrupt()
    cell = finish()
    assert (cell.how, cell.code, cell.error) == ("interrupted", 130, "KeyboardInterrupt")
    assert ("Cell In[2]" in cell.err or "<cell 2>" in cell.err) and "session/" not in cell.err
    assert cell.err.rstrip().endswith("KeyboardInterrupt")
    assert ended(runner.run("x, task.done()")).text == "(2, False)"
    assert "tick" in ended(runner.run("await asyncio.sleep(0.02)")).out


BUSY = """import asyncio, time
async def work():
    while True:
        end = time.monotonic() + %s
        while time.monotonic() < end: pass
        await asyncio.sleep(0)
task = asyncio.create_task(work());"""


def test_an_interrupt_ends_no_task_that_works_in_short_steps(runner, tmp_path):
    ended(runner.run(BUSY % 0.02, checkpoint=True))
    for _ in range(3):
        finish = runner.start("open('began', 'w').close()\nawait asyncio.sleep(60)")
        wait_for(tmp_path / "began")
        runner.interrupt()
        assert finish().error == "KeyboardInterrupt"
        (tmp_path / "began").unlink()
        assert ended(runner.run("task.done()")).text == "False"
    left = "import signal\nsignal.getsignal(signal.SIGALRM) == signal.SIG_DFL, signal.getitimer(signal.ITIMER_REAL)"
    assert ended(runner.run(left)).text == "(True, (0.0, 0.0))"


def test_an_interrupt_leaves_the_alarm_of_a_program_alone(runner, tmp_path):
    code = "import signal\nrang = []\nsignal.signal(signal.SIGALRM, lambda *_: rang.append(1))\nsignal.setitimer(signal.ITIMER_REAL, 0.6)"
    ended(runner.run(f"{code}\n{BUSY % 0.02}", checkpoint=True))
    finish = runner.start("open('began', 'w').close()\nawait asyncio.sleep(60)")
    wait_for(tmp_path / "began")
    runner.interrupt()
    assert finish().error == "KeyboardInterrupt"
    assert ended(runner.run("time.sleep(0.8); rang")).text == "[1]"


def test_a_handler_that_fails_ends_what_is_awaited_and_not_the_loop(runner):
    handler = "import asyncio, signal\ndef late(*_): raise TimeoutError('late')\nsignal.signal(signal.SIGALRM, late)\n"
    ended(runner.run(handler + "kept = asyncio.create_task(asyncio.sleep(0.3, 5))"))
    cell = runner.run("signal.setitimer(signal.ITIMER_REAL, 0.05)\nawait asyncio.sleep(60)")
    assert (cell.error, "run_forever" in cell.err) == ("TimeoutError: late", False)
    # Between two cells, too.
    ended(runner.run("signal.setitimer(signal.ITIMER_REAL, 0.05);"))
    assert "TimeoutError: late" in background(runner, "late", 1)
    assert ended(runner.run("await kept")).text == "5"


def test_a_cell_in_a_cell_takes_nothing_of_the_loop(runner):
    code = "import asyncio\ndef f():\n    get_ipython().run_cell('1')\n    return asyncio.create_task(asyncio.sleep(0, 5))\nawait f()"
    assert ended(runner.run(code)).text == "5"


def test_a_cell_can_handle_an_interrupt(runner, tmp_path):
    code = "import asyncio\ntry:\n    open('began', 'w').close()\n    await asyncio.sleep(60)\nexcept KeyboardInterrupt:\n"
    finish = runner.start(code + "    await asyncio.sleep(0.01)\n    print('handled')\nawait asyncio.sleep(0, 5)")
    wait_for(tmp_path / "began")
    time.sleep(0.05)
    runner.interrupt()
    cell = ended(finish())
    assert (cell.out, cell.text) == ("handled\n", "5")


def test_no_interrupt_is_lost_while_objects_are_removed(runner, tmp_path):
    """Python ignores an exception that comes there."""
    ended(runner.run("import asyncio"))
    for _ in range(20):
        code = "while True:\n    for _ in range(200): asyncio.create_task(asyncio.sleep(0))\n    await asyncio.sleep(0)"
        finish = runner.start("open('began', 'w').close()\n" + code)
        wait_for(tmp_path / "began")
        (tmp_path / "began").unlink()
        runner.interrupt()
        assert finish().how == "interrupted"


def test_many_interrupts_lose_no_step_of_a_task(runner, tmp_path):
    """Wherever they come in the loop."""
    count = "import asyncio\nn = 0\nasync def count():\n    global n\n    while True:\n        n += 1\n        await asyncio.sleep(0)\n"
    ended(runner.run(count + "tasks = [asyncio.create_task(count()) for _ in range(3)]"))
    for _ in range(30):
        finish = runner.start("open('began', 'w').close()\nwhile True: await asyncio.sleep(0.0001)")
        wait_for(tmp_path / "began")
        (tmp_path / "began").unlink()
        runner.interrupt()
        assert finish().how == "interrupted"
    # An interrupt that comes in the code of a task ends that task.
    assert ended(runner.run("was = n\nawait asyncio.sleep(0.02)\nleft = sum(not t.done() for t in tasks)\nleft == 0 or n > was")).text == "True"


# Undo.


def test_after_an_undo_the_loop_is_as_before(runner):
    ended(runner.run("import asyncio, signal, os\nfound, future = [], asyncio.Future()", checkpoint=True))
    ended(runner.run("asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, found.append, 1)", checkpoint=True))
    ended(runner.run("async def wait(): return await future\nwaits = asyncio.create_task(wait())", checkpoint=True))
    undone = "future.set_result(4)\nextra = asyncio.create_task(asyncio.sleep(60))\nos.kill(os.getpid(), signal.SIGUSR1)\n"
    for _ in range(2):
        assert ended(runner.run(undone + "await asyncio.sleep(0.01)\nfound, await waits", checkpoint=True)).text == "([1], 4)"
        runner.undo()
    assert ended(runner.run("found, len(asyncio.all_tasks()), future.done(), await asyncio.sleep(0)", checkpoint=True)).text == "([], 2, False, None)"
    ended(runner.run("os.kill(os.getpid(), signal.SIGUSR1)\nfuture.set_result(5)", checkpoint=True))
    assert ended(runner.run("await waits, found", checkpoint=True)).text == "(5, [1])"


def test_an_interrupt_that_came_for_a_checkpoint_does_not_keep_its_loop_from_serving_again(runner):
    ended(runner.run(SERVER, checkpoint=True))
    ended(runner.run("server.close()\nawait server.wait_closed()", checkpoint=True))
    # The runner sends one to a kernel that takes long to fork.
    os.kill(runner.pids[-2], 2)
    runner.undo()
    ended(runner.run("reader, writer = await asyncio.open_connection('127.0.0.1', port)"))
    assert ended(runner.run("writer.write(b'it\\n')\nawait reader.readline()")).text == "b'got it\\n'"


def test_a_cell_that_hangs_between_cells_is_undone_with_its_tasks(runner):
    ended(runner.run("import asyncio\nx = 1", checkpoint=True))
    ended(runner.run("x = 2\nasync def end():\n    await asyncio.sleep(0.01)\n    import os\n    os._exit(3)\nt = asyncio.create_task(end())", checkpoint=True))
    with pytest.raises(Gone):
        while True:
            runner.run("await asyncio.sleep(0.01)")
    runner.undo()
    assert ended(runner.run("x, len(asyncio.all_tasks()), await asyncio.sleep(0)")).text == "(1, 1, None)"


def test_loops_of_the_client_survive_an_undo(runner):
    code = "import asyncio\nown = asyncio.new_event_loop()\nown.add_reader(0, print)\nown.run_until_complete(asyncio.sleep(0))"
    ended(runner.run(code, checkpoint=True))
    ended(runner.run("own.remove_reader(0)\nown.run_until_complete(asyncio.sleep(0))", checkpoint=True))
    runner.undo()
    assert ended(runner.run("own.remove_reader(0)", checkpoint=True)).text == "True"


# Loops that cells break.

LOST = "The event loop of the session was closed or broken, and a task that was waiting in it is lost. There is a new one now.\n"
BROKEN = {
    "closed": ("loop.close()", LOST),
    "stopped": ("loop.stop()", ""),
    "set to none": ("asyncio.set_event_loop(None)", ""),
    "replaced": ("asyncio.set_event_loop(asyncio.new_event_loop())", ""),
    "run": ("asyncio.run(asyncio.sleep(0))", ""),
    "policy": (
        "class Policy(asyncio.DefaultEventLoopPolicy):\n    def set_event_loop(self, loop): raise ValueError\n"
        "    get_event_loop = new_event_loop = None\nasyncio.set_event_loop_policy(Policy())",
        "",
    ),
    "no running loop": ("asyncio._set_running_loop(None)", ""),
    "selector": ("loop._selector.select = None", "The event loop of the session"),
    "self-pipe": ("import os\nos.close(loop._ssock.fileno())\nos.close(loop._csock.fileno())", LOST),
    "modules": ("import sys\nfor name in [name for name in sys.modules if 'asyncio' in name]: del sys.modules[name]", LOST),
    "patched": ("asyncio.BaseEventLoop.run_forever = None", None),
}


@pytest.mark.parametrize("name", BROKEN)
def test_after_a_cell_that_breaks_the_loop_there_is_a_living_one(runner, name):
    code, said = BROKEN[name]
    kept = f"kept = asyncio.create_task(asyncio.sleep({60 if said == LOST else 0.05}, 5))"
    ended(runner.run(f"import asyncio\nloop = asyncio.get_running_loop()\n{kept}"))
    cells = [runner.run(code, checkpoint=True)]
    time.sleep(0.15)
    cells.append(runner.run("1 + 1", checkpoint=True))
    assert (cells[1].how, cells[1].text, cells[1].checkpoint) == ("ended", "2", True)
    if said is None:
        return
    cells.append(ended(runner.run("import asyncio\nawait asyncio.sleep(0, 5)", checkpoint=True)))
    cells.append(ended(runner.run("t = asyncio.create_task(asyncio.sleep(0, 5))")))
    cells.append(ended(runner.run("await t")))
    assert (cells[2].text, cells[4].text) == ("5", "5")
    errors = "".join(cell.err for cell in cells)
    assert said in errors if said else errors == ""
    if not said:
        assert ended(runner.run("await kept")).text == "5"
