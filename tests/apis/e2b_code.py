"""The code interface of the newest SDK for Python: cells of Python and of a shell, contexts, streams, forms and ends.

`test_apis_e2b_code.py` runs it, with a server whose cells can print 1 MiB.
"""

import asyncio
import time

from e2b import NotFoundException, TimeoutException
from e2b.exceptions import SandboxException
from e2b_checks import contains, done, equal, main, raised
from e2b_code_interpreter import AsyncSandbox, Sandbox

# The most that a cell can print, as the configuration of the test says.
MOST = 1 << 20


async def state_and_counts(world):
    context = await done(world.sandbox.create_code_context())
    for count, (code, text) in enumerate([("x = 1; x", "1"), ("x += 1; x", "2"), ("'a text'", "a text")], 1):
        ran = await done(world.sandbox.run_code(code, context=context))
        equal((ran.text, ran.execution_count, ran.error), (text, count, None))


async def errors(world):
    shown = []
    ran = await done(world.sandbox.run_code("def f():\n    return 1 / 0\nf()", on_error=shown.append))
    equal((ran.error.name, ran.error.value), ("ZeroDivisionError", "division by zero"))
    contains(ran.error.traceback, "in f", "ZeroDivisionError: division by zero")
    equal((ran.logs.stderr, len(shown)), ([], 1))
    equal((await done(world.sandbox.run_code("def f("))).error.name, "SyntaxError")
    ran = await done(world.sandbox.run_code("import sys; sys.exit('bye')"))
    equal((ran.error.name, ran.error.value), ("SystemExit", "bye"))


async def stream(world):
    came = []
    code = "import sys, time\nfor i in range(3):\n    print(i, 'é', flush=True); time.sleep(0.4)\nprint('e', file=sys.stderr)\n9"
    ran = await done(
        world.sandbox.run_code(
            code,
            on_stdout=lambda out: came.append((out.line, out.timestamp, time.monotonic())),
            on_stderr=lambda out: came.append((out.line, out.error)),
            on_result=lambda result: came.append(result.text),
        )
    )
    equal([one if isinstance(one, str) else one[0] for one in came], ["0 é\n", "1 é\n", "2 é\n", "e\n", "9"])
    first, third = came[0], came[2]
    assert third[2] - first[2] > 0.5, "the lines come at once"
    assert third[1] - first[1] > 500_000_000, "the times are no nanoseconds"
    equal(ran.logs.stdout, ["0 é\n", "1 é\n", "2 é\n"])


async def results_come_while_the_cell_runs(world):
    came = []
    code = "import time\ndisplay(1)\ntime.sleep(1)\ndisplay(2)"
    await done(world.sandbox.run_code(code, on_result=lambda result: came.append((result.text, time.monotonic()))))
    equal([text for text, _ in came], ["1", "2"])
    assert came[1][1] - came[0][1] > 0.7


async def forms(world):
    ran = await done(world.sandbox.run_code("import pandas\npandas.DataFrame({'a': [1, 2], 'b': [1.5, float('nan')]})"))
    table = ran.results[0]
    equal((table.data, table.is_main_result), ({"a": [1, 2], "b": [1.5, None]}, True))
    contains(table.html, "<table")
    ran = await done(world.sandbox.run_code("display({'text/latex': '$x$'}, raw=True); {'a': [1, {'b': None}]}"))
    equal(list(ran.results[0].formats()), ["latex"])
    equal(ran.results[1].json, {"a": [1, {"b": None}]})
    code = """
    class Rich:
        def _repr_mimebundle_(self, include=None, exclude=None):
            return {"text/plain": "rich", "application/pdf": b"%PDF", "application/vnd.plot+json": {"x": [1]}}
        def _repr_javascript_(self):
            return "alert(1)"
    Rich()
    """
    rich = (await done(world.sandbox.run_code(code))).results[0]
    equal((rich.text, rich.pdf, rich.javascript), ("rich", "JVBERg==", "alert(1)"))
    equal(rich.extra, {"application/vnd.plot+json": {"x": [1]}})


async def charts(world):
    code = """
    import matplotlib.pyplot as plt
    plt.plot([1, 2, 3], [2, 4, float("nan")], label="one")
    plt.title("Title"); plt.xlabel("time (s)"); plt.ylabel("size [m]")
    plt.show()
    _, (left, right) = plt.subplots(1, 2)
    left.bar(["a", "b"], [1, 2]); right.pie([1, 3], labels=["x", "y"])
    plt.show()
    plt.barh(["a", "b"], [3, 4]); plt.ylabel("names")
    plt.show()
    plt.scatter([1, 2], [3, 4]); plt.show()
    plt.figure(); plt.show()
    """
    line, both, lying, dots, *rest = (await done(world.sandbox.run_code(code))).results
    chart = line.chart
    assert line.png
    equal((chart.type, chart.title, chart.x_label, chart.x_unit, chart.y_unit), ("line", "Title", "time (s)", "s", "m"))
    equal((chart.elements[0].label, chart.elements[0].points), ("one", [(1.0, 2.0), (2.0, 4.0), (3.0, None)]))
    bars, pie = both.chart.elements
    equal([(bar.label, bar.group, bar.value) for bar in bars.elements], [("a", "Group 0", 1.0), ("b", "Group 0", 2.0)])
    equal([(part.label, part.angle) for part in pie.elements], [("x", 90.0), ("y", 270.0)])
    equal((lying.chart.x_label, [bar.value for bar in lying.chart.elements]), ("names", [3.0, 4.0]))
    equal(dots.chart.elements[0].points, [(1.0, 3.0), (2.0, 4.0)])
    equal([one.chart for one in rest], [None] * len(rest))


async def boxes(world):
    code = """
    import matplotlib.pyplot as plt
    values = [[1, 2, 3, 4, 20], [5, 6, 7, 8, 9]]
    plt.boxplot(values, tick_labels=["a", "b"], patch_artist=True); plt.show()
    plt.boxplot(values[:1], tick_labels=["a"], orientation="horizontal", patch_artist=True); plt.show()
    plt.boxplot(values[:1], tick_labels=["a"], patch_artist=True); plt.show()
    """
    two, lying, one = [result.chart for result in (await done(world.sandbox.run_code(code))).results if result.png]
    equal([chart.type.value for chart in (two, lying, one)], ["box_and_whisker"] * 3)
    for chart in (two, lying, one):
        box = chart.elements[0]
        equal((box.label, box.min, box.first_quartile, box.median, box.third_quartile, box.max), ("a", 1, 2, 3, 4, 4))
        equal(box.outliers, [20])
    equal(two.elements[1].median, 7)


async def variables(world):
    ran = await done(world.sandbox.run_code("import os; os.environ['FOO']", envs={"FOO": "bar=1"}))
    equal(ran.text, "bar=1")
    equal((await done(world.sandbox.run_code("os.getenv('FOO', 'gone')"))).text, "gone")
    # It is taken back after a failure, too.
    await done(world.sandbox.run_code("1 / 0", envs={"FOO": "bar"}))
    equal((await done(world.sandbox.run_code("os.getenv('FOO', 'gone')"))).text, "gone")
    sandbox = await world.new(envs={"GIVEN": "by its creator"})
    try:
        equal((await done(sandbox.run_code("import os; os.getenv('GIVEN')"))).text, "by its creator")
        ran = await done(sandbox.run_code("os.getenv('GIVEN')", envs={"GIVEN": "other"}))
        equal(ran.text, "other")
        equal((await done(sandbox.run_code("echo $GIVEN", language="bash"))).logs.stdout, ["by its creator\n"])
    finally:
        await done(sandbox.kill())


async def shell_lines(world):
    ran = await done(world.sandbox.run_code("!echo to the shell\nlines = !printf 'a\\nb'\nlines"))
    equal((ran.logs.stdout, ran.text), (["to the shell\n"], "['a', 'b']"))


async def shell(world):
    run = world.sandbox.run_code
    ran = await done(run("mkdir -p /tmp/there; cd /tmp/there; X='1 2'; f() { echo \"in f: $X\"; }; echo $FOO", language="bash", envs={"FOO": "it's"}))
    equal((ran.logs.stdout, ran.execution_count), (["it's\n"], 1))
    ran = await done(run("pwd; f; echo ${FOO:-gone}", language="bash"))
    equal("".join(ran.logs.stdout), "/tmp/there\nin f: 1 2\ngone\n")
    ran = await done(run("exit 3", language="bash"))
    equal((ran.error.name, ran.error.value), ("Exit", "exit code 3"))


async def contexts(world):
    sandbox = world.sandbox
    context = await done(sandbox.create_code_context(cwd="/tmp"))
    equal((context.language, context.cwd), ("python", "/tmp"))
    listed = await done(sandbox.list_code_contexts())
    equal((listed[-1].id, listed[0].language), (context.id, "python"))
    await done(sandbox.run_code("only_here = 1"))
    equal((await done(sandbox.run_code("only_here", context=context))).error.name, "NameError")
    ran = await done(sandbox.run_code("import os; open('shared', 'w').write('x'); there = 2; os.getcwd()", context=context))
    equal(ran.text, "/tmp")
    equal((await done(sandbox.run_code("open('/tmp/shared').read()"))).text, "x")
    await done(sandbox.restart_code_context(context))
    ran = await done(sandbox.run_code("there", context=context))
    equal((ran.error.value, ran.execution_count), ("name 'there' is not defined", 1))
    equal((await done(sandbox.run_code("only_here"))).text, "1")
    await done(sandbox.remove_code_context(context.id))
    assert context.id not in [one.id for one in await done(sandbox.list_code_contexts())]
    await raised(NotFoundException, lambda: sandbox.run_code("1", context=context))
    await raised(NotFoundException, lambda: sandbox.restart_code_context("../x"))


async def undone_in_one_context(world):
    """A cell that is killed is undone in its context, and what others have started lives on."""
    sandbox = world.sandbox
    context = await done(sandbox.create_code_context())
    await done(sandbox.run_code("mine = 5", context=context))
    await done(sandbox.run_code("import subprocess; other = 6; child = subprocess.Popen(['sleep', '100'])"))
    ran = await done(sandbox.run_code("mine = 7; import os; os.kill(os.getpid(), 9)", context=context))
    equal(ran.error.name, "InterpreterEnded")
    equal((await done(sandbox.run_code("mine", context=context))).text, "5")
    equal((await done(sandbox.run_code("other, child.poll()"))).text, "(6, None)")
    await done(sandbox.run_code("child.kill(); child.wait()"))
    await done(sandbox.remove_code_context(context))


async def an_interpreter_that_can_not_go_back(world):
    """With a thread there is no checkpoint, so a new interpreter follows one that has ended, and the sandbox lives on."""
    sandbox = world.sandbox
    context = await done(sandbox.create_code_context())
    await done(sandbox.run_code("import os, threading\nthreading.Thread(target=threading.Event().wait).start()", context=context))
    await done(sandbox.run_code("kept = 1", context=context))
    ran = await done(sandbox.run_code("os.kill(os.getpid(), 9)", context=context))
    equal(ran.error.name, "InterpreterEnded")
    ran = await done(sandbox.run_code("open('still.txt', 'w').write('x'); 'here'", context=context))
    equal((ran.text, ran.error), ("here", None))
    await done(sandbox.remove_code_context(context))


async def interrupted_when_the_client_goes(world):
    sandbox = world.sandbox
    await done(sandbox.run_code("kept = 1"))
    await raised(TimeoutException, lambda: sandbox.run_code("kept = 2\nimport time; time.sleep(300)", timeout=1))
    began = time.monotonic()
    ran = await done(sandbox.run_code("kept", timeout=20))
    # It was interrupted and not undone.
    equal(ran.text, "2")
    assert time.monotonic() - began < 8


async def killed_while_it_runs(world):
    sandbox = await world.new()

    async def kill():
        await asyncio.sleep(1)
        await done(world.Sandbox.kill(sandbox.sandbox_id))

    ends = asyncio.create_task(kill()) if world.Sandbox is AsyncSandbox else None
    if ends is None:
        import threading

        timer = threading.Timer(1, sandbox.kill)
        timer.start()
    error = await raised(TimeoutException, lambda: sandbox.run_code("import time; time.sleep(300)", timeout=60))
    contains(str(error), "sandbox was killed while the request was in progress")


async def all_output(world):
    code = f"print('x' * {MOST - 1000})"
    ran = await done(world.sandbox.run_code(code))
    equal((len("".join(ran.logs.stdout)), ran.error), (MOST - 999, None))
    ran = await done(world.sandbox.run_code("while True: print('y' * 1000)", timeout=30))
    equal(ran.error.name, "OutputLimit")
    equal((await done(world.sandbox.run_code("1 + 1"))).text, "2")


async def refused(world):
    sandbox = world.sandbox
    contains(str(await raised(SandboxException, lambda: sandbox.run_code("1", language="r"))), "400", "can't run", "python")
    contains(str(await raised(SandboxException, lambda: sandbox.run_code("1", language="java"))), "bash")
    error = await raised(SandboxException, lambda: sandbox.create_code_context(cwd="/no/such"))
    contains(str(error), "cwd: there is no folder")
    made = []
    try:
        while len(made) < 20:
            made.append(await done(sandbox.create_code_context(language="bash")))
    except SandboxException as full:
        contains(str(full), "at most 16 contexts")
    assert len(made) < 16
    for context in made:
        await done(sandbox.remove_code_context(context))


main(
    {"sync": Sandbox, "async": AsyncSandbox},
    [
        state_and_counts, errors, stream, results_come_while_the_cell_runs, forms, charts, boxes, variables, shell_lines, shell, contexts,
        undone_in_one_context, an_interpreter_that_can_not_go_back, interrupted_when_the_client_goes, killed_while_it_runs,
        all_output, refused,
    ],
    "e2b",
    "e2b-code-interpreter",
)  # fmt: skip
