"""The kernel of a Python session after cells that break what it stands on. The next cell works, or the answer says what was lost."""

import time

import pytest
from kernel import Gone, Runner, ended

pytestmark = pytest.mark.any_engine

# The code of a cell, and what one of the answers says then, if something is lost.
BROKEN = {
    "modules": ("import sys\nsys.modules.clear()", "removed modules from sys.modules"),
    "builtins": (
        "import builtins\nfor name in dir(builtins):\n    if name[0].islower(): setattr(builtins, name, None)",
        "TypeError: 'NoneType' object is not callable",
    ),
    "class of the shell": (
        "from IPython.core.interactiveshell import InteractiveShell as I\n"
        "for name in vars(I).copy():\n    if name[:2] != '__': setattr(I, name, None)",
        "a cell has broken IPython",
    ),
    "shell": ("get_ipython().run_cell = None", "a cell has broken IPython"),
    "results of the shell": ("import IPython.core.interactiveshell as i\ni.ExecutionInfo = None", "a cell has broken IPython"),
    "its parts": ("s = get_ipython()\ns.compile = s.history_manager = s.events = s.display_formatter = None", "a cell has broken IPython"),
    "instance of the shell": ("from IPython.core.interactiveshell import InteractiveShell\nInteractiveShell.clear_instance()", ""),
    "hooks": ("import sys\nsys.displayhook = sys.excepthook = sys.unraisablehook = None\nsys.meta_path.clear()", ""),
    "loop": ("import asyncio\nasyncio.BaseEventLoop.run_forever = None\nkept = asyncio.create_task(asyncio.sleep(9))", "The event loop of the session"),
    "inside of the loop": ("import asyncio\nloop = asyncio.get_running_loop()\nloop._ready = loop._selector = loop._scheduled = None", ""),
    "asyncio": ("import asyncio\nfor name in list(vars(asyncio)):\n    if name[:2] != '__': delattr(asyncio, name)", ""),
    "clocks and sockets": ("import time, socket, select\ntime.monotonic = time.sleep = socket.socket = select.poll = None", ""),
    "calls of the system": (
        "import os, posix\nfor module in [os, posix]:\n    for name in list(vars(module)):\n        if name[0] != '_': setattr(module, name, None)",
        "",
    ),
    "ignored signals": (
        "import signal\nfor number in signal.valid_signals() - {9, 19}: signal.signal(number, signal.SIG_IGN)\n",
        "",
    ),
    "blocked signals": ("import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals());", ""),
    "handlers that fail": (
        "import os, signal\ndef fail(*_): raise ValueError\nfor number in [2, 10, 14, 15, 17]: signal.signal(number, fail)\n",
        "",
    ),
    "traces": ("import sys, threading\nsys.settrace(lambda *_: 1 / 0)\nsys.setprofile(lambda *_: 1 / 0)", "ZeroDivisionError"),
    "a part of the shell": ("get_ipython().display_formatter = None", "a cell has removed get_ipython().display_formatter"),
    "tracebacks": ("get_ipython().showtraceback = None", ""),
    "events": ("get_ipython().events.register('post_run_cell', lambda result: 1 / 0)", "post_run_cell"),
    "values": ("_oh = In = _ih = 5", ""),
    "ends of the interpreter": ("import atexit\natexit.register(print, 'end')\natexit._run_exitfuncs()", ""),
    "streams": ("import sys\nclass Stream:\n    def __getattr__(self, name): raise MemoryError\nsys.stdout = sys.stderr = Stream()", ""),
    "factory of tasks": ("import asyncio\nasyncio.get_running_loop().set_task_factory(lambda *_, **more: None)", ""),
    "finders": ("import sys\nsys.meta_path = sys.path_hooks = sys.path_importer_cache = None", ""),
    "depth": ("import sys\nsys.setrecursionlimit(60)", ""),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_next_cell_works_or_the_answer_says_what_was_lost(runner, name):
    code, said = BROKEN[name]
    ended(runner.run("x = 1", checkpoint=True))
    cells = [runner.run(code, checkpoint=True), runner.run("x, 1 + 1", checkpoint=True), runner.run("1 / 0", checkpoint=True)]
    assert (cells[1].how, cells[1].text, cells[1].checkpoint) == ("ended", "(x, 2)".replace("x", "1"), True), cells[1].err
    assert cells[2].error == "ZeroDivisionError: division by zero"
    assert said in "".join(cell.err for cell in cells)
    for _ in range(3):
        runner.undo()
    assert ended(runner.run("import asyncio\nx, await asyncio.sleep(0, 2)")).text == "(1, 2)"


# Cells that leave no process, or not only that of the session.
GONE = {
    "_exit": "import os\nos._exit(0)",
    "signal": "import os\nos.kill(os.getpid(), 9)",
    "in a task": "import asyncio, os\nasync def f(): os._exit(0)\nt = asyncio.create_task(f())",
    "crash": "import ctypes\nctypes.string_at(0)",
    "abort": "import os\nos.abort()",
    "the kernel's own": "import gc\nfor one in gc.get_objects():\n    if type(one) is dict and 'serve' in one and 'library' in one: one.clear()",
}


@pytest.mark.parametrize("name", GONE)
def test_a_cell_that_ends_the_interpreter_costs_only_itself(runner, name):
    ended(runner.run("import asyncio\nx = 1\nt = asyncio.create_task(asyncio.sleep(0.01, 5))", checkpoint=True))
    with pytest.raises(Gone):
        runner.run(f"x = 2\n{GONE[name]}", checkpoint=True)
    runner.undo()
    assert ended(runner.run("x, await t", checkpoint=True)).text == "(1, 5)"


FORKS = [
    "import os\npid = os.fork()",
    "import multiprocessing as m\np = m.get_context('fork').Process(target=print)\np.start()",
    # It leaves the code of the cell in a way that the kernel can't report.
    "import os\nclass Exit(SystemExit):\n    @property\n    def code(self): raise ValueError\nif os.fork() == 0: raise Exit",
]


@pytest.mark.parametrize("code", FORKS)
def test_a_fork_of_a_cell_takes_nothing_from_the_session(runner, code):
    ended(runner.run("import asyncio\nx = 1\nt = asyncio.create_task(asyncio.sleep(0.05, 5))", checkpoint=True))
    ended(runner.run(code, checkpoint=True))
    assert ended(runner.run("x, await t", checkpoint=True)).text == "(1, 5)"
    ended(runner.run("import os\nos.waitpid(-1, 0);", checkpoint=True))
    assert ended(runner.run("x", checkpoint=True)).checkpoint


def test_threads_are_a_reason_for_no_checkpoint_and_go_on(runner):
    ended(runner.run("import asyncio, threading, time\nloop, found = asyncio.get_running_loop(), []", checkpoint=True))
    code = "def work():\n    time.sleep(0.1)\n    loop.call_soon_threadsafe(found.append, 5)\nthread = threading.Thread(target=work)\nthread.start()"
    ended(runner.run(code, checkpoint=True))
    assert ended(runner.run("1", checkpoint=True)).why_not == "threads"
    # The loop takes calls of threads between cells, too.
    time.sleep(0.3)
    assert ended(runner.run("found, thread.is_alive()", checkpoint=True)).text == "([5], False)"
    assert ended(runner.run("1", checkpoint=True)).checkpoint


def test_a_session_whose_every_part_was_broken_ends_with_its_channel(tmp_path):
    runner = Runner(tmp_path)
    try:
        for code, _ in BROKEN.values():
            runner.run(code, checkpoint=True)
    finally:
        runner.close()
