"""The kernel of a Python session: state, ends of cells, checkpoints, interruptions, streams. It needs no engine."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from kernel import Gone, Runner, ended
from processes import children, open_files, state

pytestmark = pytest.mark.any_engine


def test_state_lives_on(runner):
    ended(runner.run("import math\nx = 1\ndef double(n):\n    return 2 * n + y\nclass C:\n    a = 5"))
    cell = ended(runner.run("y = 1\nprint(double(x), C().a)\nmath.floor(2.5)"))
    assert (cell.out, cell.text) == ("3 5\n", "2")
    assert runner.version.startswith(b"3.")


@pytest.mark.parametrize("code", ["None", "5;", "5 ;  # that", "x = 5", "", "# nothing", "(5);", "if True:\n    5"])
def test_no_value_is_shown(runner, code):
    assert ended(runner.run(code)).value is None


@pytest.mark.parametrize("code", ["5", "'a;b'", "5  # a; b", "(5\n)", "x = 4; 5"])
def test_the_last_value_is_shown(runner, code):
    assert ended(runner.run(code)).text in ("5", "'a;b'")


def test_last_values_have_names(runner):
    for code in ["1", "'b'", "[3]"]:
        runner.run(code)
    assert runner.run("_, __, ___, _1, _2, _3").text == "([3], 'b', 1, 1, 'b', [3])"
    runner.run("_ = 'mine'")
    runner.run("7")
    cell = runner.run("print(_, _6)")
    assert cell.out == "mine 7\n"


def test_the_texts_of_cells_are_bounded(runner):
    runner.run("def f():\n    return 1 / 0")
    # Each text is kept as it came and as Python.
    for _ in range(5):
        ended(runner.run("# some line\n" * 200_000 + "1;"))
    kept = "[n for n, t in enumerate(In) if t], [n for n in _ih if n.startswith('# some')] == In[4:7], [n for n in range(1, 8) if f'_i{n}' in globals()]"
    assert ended(runner.run(kept)).text == "([4, 5, 6, 7], True, [4, 5, 6, 7])"
    assert runner.run("f()").error == "ZeroDivisionError: division by zero"
    import_lines = "import linecache\nsum(len(entry[2]) for name, entry in linecache.cache.items() if 'ipython-input' in name) < 1_000_000"
    assert ended(runner.run(import_lines)).text == "True"


def test_a_future_holds_for_later_cells(runner):
    runner.run("from __future__ import annotations")
    assert runner.run("def f(a: unknown): ...\nf.__annotations__").text == "{'a': 'unknown'}"


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("is_prepared", [False, True])
def test_code_runs_when_the_runner_lets_it(runner, tmp_path, checkpoint, is_prepared):
    ended(runner.run("x = 1", checkpoint))
    if is_prepared:
        assert runner.prepare() == ""
    finish = runner.start("open('ran', 'w').close(); x", checkpoint and not is_prepared, go=False)
    time.sleep(0.2)
    assert not (tmp_path / "ran").exists()
    runner.go()
    assert ended(finish()).text == "1" and (tmp_path / "ran").exists()


LOOKS = """
import os, sys, inspect, gc
print(__name__, "__file__" in globals(), __builtins__.__name__, sys.argv, repr(sys.path[0]), len(getattr(sys, "orig_argv", [0])))
print([name for name in sys.modules if "kernel" in name or "isolator" in name], sys.modules["__main__"].__dict__ is globals())
print([name for name in os.environ if name.startswith("ISOLATOR")])
print([number for number in os.listdir("/proc/self/fd") if int(number) > 2 and os.path.exists("/proc/self/fd/" + number)
       and os.get_inheritable(int(number))])
print(sorted(name for name in globals() if not name.startswith("_")), gc.isenabled())
import signal
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(sys.gettrace(), any("runner/session" in place for place in list(sys.path_importer_cache) + sys.path))
"""
# What IPython adds to the variables.
IPYTHONS = ["In", "Out", "exit", "get_ipython", "open", "quit"]


def test_a_cell_does_not_see_the_kernel(runner):
    for checkpoint in [False, True]:
        lines = ended(runner.run(LOOKS, checkpoint)).out.splitlines()
        assert lines == [
            "__main__ False builtins [''] '' 1",
            "[] True",
            "[]",
            "[]",
            f"{sorted([*IPYTHONS, 'gc', 'inspect', 'os', 'sys', *(['signal'] if checkpoint else [])])} True",
            "True set()",
            "None False",
        ]


BREAKS = {
    "builtins": "import builtins\nfor name in dir(builtins):\n    if name[0].islower(): setattr(builtins, name, None)",
    "modules": "import sys\nsys.modules.clear()",
    "calls": "import os, posix, _socket, signal, _signal\nfor module in [os, posix]:\n    for name in dir(module):\n"
    "        if name in ('fork', 'write', 'dup2', 'close', '_exit', 'listdir', 'waitpid', 'getpid'): setattr(module, name, None)\n"
    "_signal.pthread_sigmask = signal.signal = _signal.signal = None",
    "variables": "globals().clear()",
    "hooks": "import sys\nsys.excepthook = sys.displayhook = sys.unraisablehook = print = display = None\nsys.meta_path.clear()",
    "lines": "import linecache\nlinecache.clearcache()\nlinecache.getlines = None",
    "cache of lines": "import linecache\nlinecache.cache = None",
    "collector": "import gc\ngc.freeze()\ngc.disable()\ngc.collect = gc.isenabled = gc.disable = None",
    "trace": "import sys\nsys.settrace(lambda *_: 1 / 0)",
    "finders": "import sys\nsys.path.clear()\nsys.path_hooks.clear()",
}


@pytest.mark.parametrize("code", BREAKS.values(), ids=BREAKS)
def test_a_cell_that_breaks_python_does_not_break_the_kernel(runner, code):
    runner.run(code, checkpoint=True)
    cell = runner.run("1 + 1", checkpoint=True)
    assert (cell.how, cell.checkpoint, cell.text) == ("ended", True, "2")
    cell = runner.run("1 / 0", checkpoint=True)
    assert (cell.how, cell.code, cell.error) == ("failed", 1, "ZeroDivisionError: division by zero")
    assert "ZeroDivisionError: division by zero\n" in cell.err


def test_exits_leave_the_session(runner):
    runner.run("x = 1\nimport sys")
    for code, exit_code, err in [
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("exit(-2)", -2, ""),
        ("sys.exit(True)", 1, ""),
        ("quit('bye')", 1, "bye\n"),
        ("sys.exit(1 << 40)", -1, ""),
        ("class Odd(int):\n    __int__ = __bool__ = __index__ = None\nraise SystemExit(Odd(3))", 3, ""),
        ("class Never:\n    def __ne__(self, other): raise ValueError\n    def __repr__(self): return 'never'\nsys.exit(Never())", 1, "never\n"),
        ("import asyncio\nawait asyncio.sleep(0)\nsys.exit(4)", 4, ""),
    ]:
        cell = runner.run(f"x += 1\n{code}")
        assert (cell.how, cell.code, cell.err) == ("exited", exit_code, err)
    assert runner.run("x").text == "11"


def test_input_is_at_its_end(runner):
    for code in ["input()", "import getpass\ngetpass.getpass('Password: ', stream=None)", "exit()", "from getpass import getpass\ngetpass()"]:
        cell = runner.run(code)
        assert cell.how == "exited" or cell.error == "EOFError: EOF when reading a line"
        assert "Warning" not in cell.err and cell.out == ""


# Checkpoints.


def test_an_undone_cell_leaves_nothing(runner):
    ended(runner.run("x = [1]"))
    for _ in range(3):
        cell = ended(runner.run("x.append(2)\nx", checkpoint=True))
        assert (cell.checkpoint, cell.why_not, cell.text) == (True, "", "[1, 2]")
        runner.undo()
    assert runner.run("x").text == "[1]"


def test_cells_are_undone_one_by_one(runner):
    for number in range(5):
        assert ended(runner.run(f"x = {number}", checkpoint=True)).checkpoint
    for number in [3, 2, 1]:
        runner.undo()
        assert runner.run("x").text == str(number)
    assert runner.run("x = 10\nx", checkpoint=True).text == "10"
    runner.undo()
    assert runner.run("x").text == "1"


@pytest.mark.parametrize("code", ["os._exit(5)", "import ctypes\nctypes.string_at(0)", "os.kill(os.getpid(), 9)"])
def test_a_crash_costs_one_cell(runner, code):
    runner.run("import os\nx = 1")
    with pytest.raises(Gone):
        runner.run(code, checkpoint=True)
    runner.undo()
    assert runner.run("x").text == "1"


def test_a_hanging_cell_is_undone(runner):
    runner.run("x = 1")
    runner.start("x = 2\nwhile True: pass", checkpoint=True)
    runner.undo()
    assert ended(runner.run("x")).text == "1"


UNFAITHFUL = {
    "threads": "import threading, time\nthreading.Thread(target=time.sleep, args=[30], daemon=True).start()",
    "processes": "import subprocess\nchild = subprocess.Popen(['sleep', '30'])",
    "timer": "import signal\nsignal.alarm(30)",
    "lock": "import fcntl\nfile = open('a', 'w')\nfcntl.lockf(file, fcntl.LOCK_EX)",
}
FAITHFUL_AGAIN = {
    "processes": "child.kill(); child.wait()",
    "timer": "signal.alarm(0)",
}


@pytest.mark.parametrize("reason", UNFAITHFUL)
def test_there_is_no_checkpoint_that_would_not_be_faithful(runner, reason):
    assert ended(runner.run(UNFAITHFUL[reason], checkpoint=True)).checkpoint
    cell = ended(runner.run("1", checkpoint=True))
    assert (cell.checkpoint, cell.why_not) == (False, reason)
    ended(runner.run(FAITHFUL_AGAIN.get(reason, "")))
    assert runner.run("1", checkpoint=True).checkpoint == (reason in FAITHFUL_AGAIN)


def test_an_unreaped_child_rules_out_a_checkpoint(runner):
    runner.run("import os\nif os.fork() == 0: os._exit(0)")
    time.sleep(0.1)
    assert not runner.run("1", checkpoint=True).checkpoint
    runner.run("os.wait()")
    assert runner.run("1", checkpoint=True).checkpoint


def test_a_checkpoint_goes_on_with_the_same_numbers(runner, tmp_path):
    plain = Runner(tmp_path)
    code = ["import random\nrandom.seed(5)\nrandom.gauss(0, 1)", *["random.gauss(0, 1), random.random()"] * 3]
    expected = [plain.run(one).text for one in code]
    plain.close()
    assert [runner.run(one, checkpoint=True).text for one in code] == expected
    runner.undo()
    assert runner.run(code[-1], checkpoint=True).text == expected[-1]


def test_an_undone_cell_has_not_read_from_open_files(runner, tmp_path):
    (tmp_path / "a").write_text("".join(f"{line}\n" for line in range(10_000)))
    runner.run("file = open('a')\nfile.readline()")
    code = "sum(map(int, file))"
    first = runner.run(code, checkpoint=True).text
    runner.undo()
    assert first == runner.run(code).text == str(sum(range(10_000)))


def test_fork_hooks_run_and_handlers_of_child_signals_do_not(runner):
    runner.run("import os, signal\nheard = []\nos.register_at_fork(after_in_child=lambda: heard.append('fork'))")
    runner.run("signal.signal(signal.SIGCHLD, lambda *_: heard.append('child'))")
    assert runner.run("heard", checkpoint=True).text == "['fork']"
    runner.undo()
    assert runner.run("heard").text == "[]"


def test_a_checkpoint_has_no_streams_and_a_session_no_other_channel(runner):
    counts = []
    for _ in range(4):
        pid_before = runner.pids[-1]
        ended(runner.run("1", checkpoint=True))
        counts.append(open_files(runner.pids[-1]))
        until = time.monotonic() + 5
        while [os.readlink(f"/proc/{pid_before}/fd/{number}") for number in (1, 2)] != ["/dev/null"] * 2:
            # It may not have come further than its fork.
            assert time.monotonic() < until
            time.sleep(0.001)
    assert len(set(counts)) == 1
    assert len({os.getsid(pid) for pid in runner.pids}) == len(runner.pids)


def test_a_session_ends_with_its_channel_and_without_the_ends_of_programs(tmp_path):
    runner = Runner(tmp_path)
    runner.run(
        "import atexit, os\natexit.register(open, 'exit', 'w')\n"
        "class C:\n    def __del__(self): os.mkdir('del')\nc = C()\nf = open('buffered', 'w'); f.write('x')",
        checkpoint=True,
    )
    runner.run("signal = __import__('signal').signal(15, lambda *_: os.mkdir('handler'))", checkpoint=True)
    assert runner.close() == 0
    assert (os.listdir(tmp_path), Path(tmp_path, "buffered").read_text()) == (["buffered"], "")


def test_a_fork_that_fails_is_a_reason(runner):
    ended(runner.run("import os, resource\nresource.setrlimit(resource.RLIMIT_NPROC, (1, 1))"))
    # Nothing limits how many processes root has.
    ended(runner.run("if os.getuid() == 0:\n    os.setgid(65534)\n    os.setuid(65534)"))
    cell = ended(runner.run("2", checkpoint=True))
    assert (cell.checkpoint, cell.why_not) == (False, "no process")


def test_memory_is_taken_from_the_cell_first(runner):
    def score(pid):
        return Path(f"/proc/{pid}/oom_score_adj").read_text().strip()

    for checkpoint in [False, True, True]:
        code = "from pathlib import Path\nPath('/proc/self/oom_score_adj').read_text().strip()"
        assert runner.run(code, checkpoint).text == "'900'"
        assert {score(pid) for pid in runner.pids} == {"500"}


def test_a_fork_of_the_client_is_not_the_session(runner):
    cell = ended(runner.run("import os\nprint('both', flush=True)\npid = os.fork()\ndisplay(pid > 0)\npid > 0"))
    assert cell.text == "True"
    assert [shown["text/plain"] for shown in cell.shown] == [b"True"]
    assert ended(runner.run("os.waitpid(pid, 0)[1]")).text == "0"


def test_a_cell_that_closes_the_channel_ends_the_process(tmp_path):
    runner = Runner(tmp_path)
    runner.run("x = 1")
    with pytest.raises(Gone):
        runner.run("import os\nos.closerange(3, 64)", checkpoint=True)
    runner.undo()
    assert runner.run("x").text == "1"
    assert runner.close() == 0


def test_code_that_is_no_text_of_python_fails(runner):
    for code in ["x = 1\0", "(" * 10_000, "x = '\ud800'".encode("utf-8", "surrogatepass").decode(errors="replace")[:-1]]:
        cell = runner.run(code)
        assert (cell.how, cell.code) == ("failed", 1)
        assert "session/" not in cell.err
    assert runner.run("1").text == "1"


# Interruptions.


def wait_for(path):
    until = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.002)


INTERRUPTED = {
    "loop": "while True: pass",
    "sleep": "import time\ntime.sleep(60)",
    "await": "import asyncio\nawait asyncio.sleep(60)",
    "event": "import threading\nthreading.Event().wait()",
    "process": "import subprocess\nsubprocess.run(['sleep', '60'])",
    "shell": "!sleep 60",
    "shown": "class C:\n    def __repr__(self):\n        while True: pass\nC()",
    "computation": "sum(n for n in range(10 ** 12))",
    "awaited computation": "async def f():\n    while True: pass\nawait f()",
}


@pytest.mark.parametrize("code", INTERRUPTED.values(), ids=INTERRUPTED)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_an_interrupt_ends_the_cell(runner, tmp_path, code, checkpoint):
    runner.run("x = 1\nimport asyncio")
    finish = runner.start(f"open('began', 'w').close()\nx = 2\n{code}", checkpoint)
    wait_for(tmp_path / "began")
    time.sleep(0.05)
    runner.interrupt()
    cell = finish()
    assert (cell.how, cell.code, cell.error.rstrip(": ")) == ("interrupted", 130, "KeyboardInterrupt")
    assert "Cell In[2]" in cell.err and "session/" not in cell.err and "run_forever" not in cell.err
    assert cell.err.rstrip().endswith("KeyboardInterrupt")
    assert ended(runner.run("x")).text == "2"


def test_an_interrupted_script_is_an_interrupt(runner, tmp_path):
    # Once the shell is known to the kernel, which interrupts it.
    finish = runner.start("%%bash\nsleep 1\ntouch began\nexec sleep 60")
    wait_for(tmp_path / "began")
    runner.interrupt()
    assert finish().error == "KeyboardInterrupt"


@pytest.mark.parametrize("code", ["%run nap.py", "get_ipython().run_cell(nap)", "get_ipython().run_cell_magic('capture', '', nap)"])
def test_an_interrupt_of_a_magic_ends_the_whole_cell(runner, tmp_path, code):
    ended(runner.run("nap = \"open('began', 'w').close()\\nimport time; time.sleep(60)\"; open('nap.py', 'w').write(nap);"))
    finish = runner.start(f"{code}\nprint('went on')")
    wait_for(tmp_path / "began")
    runner.interrupt()
    cell = finish()
    assert (cell.how, cell.out, cell.err.count("\nKeyboardInterrupt")) == ("interrupted", "", 1)
    # What the client itself handles is no end.
    handled = "try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    get_ipython().showtraceback()\n1"
    assert ended(runner.run(handled)).text == "1"


def test_an_interrupt_between_cells_does_nothing(runner):
    runner.run("x = 1\nimport signal")
    for _ in range(5):
        runner.interrupt()
        time.sleep(0.01)
        assert ended(runner.run("x")).text == "1"
    runner.run("import threading, time\nthreading.Thread(target=time.sleep, args=[9], daemon=True).start()")
    runner.interrupt()
    time.sleep(0.05)
    assert ended(runner.run("x")).text == "1"


def test_many_interrupts_end_the_cell_once(runner, tmp_path):
    """Wherever they come: in the cell, while it is reported, after it."""
    finish = runner.start("open('began', 'w').close()\nwhile True: pass")
    wait_for(tmp_path / "began")
    done = threading.Event()

    def flood():
        while not done.is_set():
            runner.interrupt()
            time.sleep(0.0005)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        assert finish().how == "interrupted"
        for number in range(200):
            cell = runner.run(f"{number}", checkpoint=number % 10 == 0)
            assert cell.how in ("ended", "interrupted"), (cell.error, cell.err)
    finally:
        done.set()
        thread.join()
    assert ended(runner.run("1")).text == "1"


def test_a_handler_of_the_client_stays(runner, tmp_path):
    runner.run("import signal, time\nheard = []\nsignal.signal(signal.SIGINT, lambda *_: heard.append(1))")
    runner.interrupt()
    finish = runner.start("open('began', 'w').close()\nwhile not heard: time.sleep(0.01)\nheard", checkpoint=True)
    wait_for(tmp_path / "began")
    runner.interrupt()
    assert ended(finish()).text == "[1]"


def test_an_interrupted_cell_can_clean_up(runner, tmp_path):
    finish = runner.start(
        "import asyncio\nasync def f():\n    try:\n        open('began', 'w').close()\n        await asyncio.sleep(60)\n"
        "    finally:\n        await asyncio.sleep(0.01)\n        print('tidied')\nawait f()"
    )
    wait_for(tmp_path / "began")
    time.sleep(0.05)
    runner.interrupt()
    cell = finish()
    assert (cell.how, cell.out) == ("interrupted", "tidied\n")
    assert "Cell In[1], line 5 in f\n" in cell.err


# Streams.


def test_everything_is_flushed_at_the_end_of_a_cell(runner):
    cell = ended(runner.run("import sys\nprint('a', end='')\nsys.stderr.write('b')\nsys.__stdout__.write('c');"))
    assert (cell.out, cell.err) == ("ac", "b")
    cell = ended(runner.run("import io\nsys.stdout = io.StringIO()\nprint('kept')\nsys.__stdout__.write('d');"))
    assert cell.out == "d"
    assert runner.run("sys.stdout.getvalue()").text == "'kept\\n'"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_closed_stream_is_opened_again(runner, name):
    for code in ["sys.{0}.close()", "sys.{0}.detach()", "del sys.{0}", "os.close(1); os.close(2)", "os.closerange(0, 3)"]:
        runner.run(f"import os, sys\n{code.format(name)}")
        cell = ended(runner.run("print('out')\nprint('err', file=sys.stderr)\nos.system('echo child')", checkpoint=True))
        assert (cell.out.splitlines(), cell.err, cell.text) == (["child", "out"], "err\n", "0") or (
            cell.out.splitlines(),
            cell.err,
        ) == (["out", "child"], "err\n")


def test_errors_go_to_the_cells_standard_error(runner):
    cell = runner.run("import sys, io\nsys.stderr = io.StringIO()\n1 / 0")
    assert cell.err.endswith("ZeroDivisionError: division by zero\n")
    assert runner.run("sys.stderr.getvalue()").text == "''"


def test_threads_print_into_the_last_cells_streams(runner):
    runner.run("import threading, time\ndef later():\n    time.sleep(0.1)\n    print('later', flush=True)")
    runner.run("threading.Thread(target=later).start()")
    until, text = time.monotonic() + 10, b""
    os.set_blocking(runner.kept[0], False)
    while not text and time.monotonic() < until:
        time.sleep(0.01)
        try:
            text = os.read(runner.kept[0], 100)
        except BlockingIOError:
            pass
    assert text == b"later\n"


def test_much_output_arrives_before_the_end(runner):
    assert len(ended(runner.run("print('x' * 3_000_000)")).out) == 3_000_001


def test_a_thousand_cells_leave_nothing_open(runner):
    runner.run("x = 0")
    before = open_files(runner.pids[-1])
    for _ in range(1000):
        runner.run("x += 1")
    assert runner.run("x").text == "1000"
    assert open_files(runner.pids[-1]) == before


def test_a_process_of_the_client_has_no_channel(runner):
    assert ended(runner.run("import os\nos.system('ls /proc/self/fd > found')\nlen(open('found').read().split())")).text == "4"
    assert [state(pid) for pid in children(runner.pids[-1])] == []


def test_an_interrupt_can_come_at_the_very_start(runner):
    for _ in range(20):
        # One sleep would do with luck: Python misses a signal that comes just before it asks the system to sleep.
        finish = runner.start("import time\nwhile True:\n    time.sleep(0.01)", checkpoint=True)
        os.kill(runner.pids[-1], signal.SIGINT)
        assert finish().how == "interrupted"


@pytest.mark.parametrize("end", ["SystemExit(3)", "KeyboardInterrupt"])
def test_a_stream_that_ends_cells_is_replaced(runner, end):
    runner.run(f"import sys\nclass Stream:\n    def __getattr__(self, name): raise {end}\nsys.stdout = Stream()")
    runner.run("1")
    assert ended(runner.run("print('works')")).out == "works\n"


def test_a_session_in_a_removed_folder_can_await(runner):
    ended(runner.run("import os\nos.mkdir('gone'); os.chdir('gone'); os.rmdir(os.getcwd())"))
    code = "async def five():\n    return 5\nawait five()"
    assert ended(runner.run(code)).text == "5"
