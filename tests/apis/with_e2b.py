"""The newest SDKs for Python: e2b and e2b-code-interpreter, with all that older ones lack."""

import asyncio
import urllib.error
import urllib.request

from e2b import CommandExitException, InvalidArgumentException, PtySize, SandboxQuery, SandboxState
from e2b_checks import CORE, contains, done, equal, main, raised

from e2b_code_interpreter import AsyncSandbox

# example
from e2b_code_interpreter import Sandbox
# end


async def example(world):
    """The part of this script that the documentation shows."""
    await asyncio.to_thread(show)


def show():
    # example
    with Sandbox.create() as sandbox:
        sandbox.run_code("x = 1")
        execution = sandbox.run_code("x += 1; x")
        print(execution.text)  # 2

        sandbox.files.write("data.csv", "a,b\n1,2\n")
        result = sandbox.commands.run("wc -l data.csv")
        print(result.stdout)  # 2 data.csv
    # end
    equal((execution.text, result.stdout), ("2", "2 data.csv\n"))


async def cells(world):
    run = world.sandbox.run_code
    await done(run("x = 20"))
    execution = await done(run("print('printed')\nx + 1"))
    equal((execution.text, "".join(execution.logs.stdout), execution.error), ("21", "printed\n", None))
    first = execution.execution_count
    execution = await done(run("import sys; print('e', file=sys.stderr); 1 / 0"))
    equal("".join(execution.logs.stderr), "e\n")
    equal((execution.error.name, execution.error.value), ("ZeroDivisionError", "division by zero"))
    contains(execution.error.traceback, "ZeroDivisionError", "1 / 0")
    equal(execution.execution_count, first + 1)
    equal((await done(run("import os; os.environ['A']", envs={"A": "b"}))).text, "b")
    equal((await done(run("import os; os.getcwd()"))).text, "/home/user")
    equal("".join((await done(run("!echo $((40 + 2))"))).logs.stdout).strip(), "42")


async def callbacks(world):
    seen = []
    await done(
        world.sandbox.run_code(
            "import sys, time\nprint('a', flush=True)\ntime.sleep(1)\nprint('b', file=sys.stderr, flush=True)\n5",
            on_stdout=lambda message: seen.append(message.line),
            on_stderr=lambda message: seen.append(message.line),
            on_result=lambda result: seen.append(result.text),
        )
    )
    equal("".join(seen), "a\nb\n5")


async def shown(world):
    execution = await done(world.sandbox.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})"))
    (result,) = execution.results
    contains(result.html, "<table")
    contains(result.text, "a  b")
    execution = await done(
        world.sandbox.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.title('Title')\nplt.show()")
    )
    assert execution.results[0].png.startswith("iVBOR"), execution
    execution = await done(world.sandbox.run_code("from IPython.display import display, JSON\ndisplay(JSON({'a': 1}))\n7"))
    equal(execution.results[0].json, {"a": 1})
    equal([result.text for result in execution.results if result.is_main_result], ["7"])


async def contexts(world):
    sandbox = world.sandbox
    context = await done(sandbox.create_code_context(cwd="/tmp"))
    equal((context.language, context.cwd), ("python", "/tmp"))
    equal((await done(sandbox.run_code("import os; y = 5; os.getcwd()", context=context))).text, "/tmp")
    equal((await done(sandbox.run_code("y"))).error.name, "NameError")
    assert context.id in [it.id for it in await done(sandbox.list_code_contexts())]
    await done(sandbox.restart_code_context(context))
    equal((await done(sandbox.run_code("y", context=context))).error.name, "NameError")
    await done(sandbox.remove_code_context(context))
    assert context.id not in [it.id for it in await done(sandbox.list_code_contexts())]


async def other_languages(world):
    """Bash works; a language that is not there is refused with those that are."""
    contains("".join((await done(world.sandbox.run_code("echo $((6 * 7))", language="bash"))).logs.stdout), "42")
    error = await raised(Exception, lambda: world.sandbox.run_code("1", language="r"))
    contains(str(error), "python")


async def interrupted(world):
    """The timeout of a call ends the cell, and the variables stay."""
    from e2b import TimeoutException

    await done(world.sandbox.run_code("z = 3"))
    await raised(TimeoutException, lambda: world.sandbox.run_code("while True: pass", timeout=2))
    equal((await done(world.sandbox.run_code("z"))).text, "3")


async def pages(world):
    made = [await world.new(metadata={"check": "pages", "number": str(n)}) for n in range(3)]
    try:
        paginator = world.Sandbox.list(query=SandboxQuery(metadata={"check": "pages"}), limit=2)
        found = []
        while paginator.has_next:
            page = await done(paginator.next_items())
            assert 0 < len(page) <= 2, page
            found += [info.sandbox_id for info in page]
        equal(sorted(found), sorted(sandbox.sandbox_id for sandbox in made))
        running = world.Sandbox.list(query=SandboxQuery(metadata={"number": "1"}, state=[SandboxState.RUNNING]))
        equal([info.sandbox_id for info in await done(running.next_items())], [made[1].sandbox_id])
        paused = world.Sandbox.list(query=SandboxQuery(metadata={"number": "1"}, state=[SandboxState.PAUSED]))
        equal(await done(paused.next_items()), [])
    finally:
        for sandbox in made:
            await done(sandbox.kill())


async def pause_and_connect(world):
    sandbox = await world.new()
    try:
        await done(sandbox.run_code("kept = 42"))
        await done(sandbox.files.write("kept", "on disk"))
        await done(sandbox.pause())
        equal((await done(world.Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()))[0].sandbox_id, sandbox.sandbox_id)
        again = await done(sandbox.connect())
        equal((await done(again.run_code("kept"))).text, "42")
        equal(await done(again.files.read("kept")), "on disk")
    finally:
        await done(sandbox.kill())


async def timeout_is_set(world):
    sandbox = await world.new(timeout=30)
    try:
        await done(sandbox.set_timeout(200))
        info = await done(sandbox.get_info())
        assert 150 < (info.end_at - info.started_at).total_seconds() < 250, info
    finally:
        await done(sandbox.kill())


async def metrics(world):
    async with asyncio.timeout(30):
        while not (samples := await done(world.sandbox.get_metrics())):
            await asyncio.sleep(0.5)
    for sample in samples:
        assert 0 < sample.mem_used <= sample.mem_total and sample.disk_used <= sample.disk_total, sample
        assert 0 <= sample.cpu_used_pct <= 100 and sample.cpu_count > 0, sample


async def many_files(world):
    files = world.sandbox.files
    written = await done(files.write_files([{"path": f"many/{n}", "data": str(n)} for n in range(20)]))
    equal([info.path for info in written], [f"/home/user/many/{n}" for n in range(20)])
    equal(await done(files.read("many/7", gzip=True)), "7")
    await done(files.write("many/sub/packed", b"packed" * 1000, gzip=True))
    equal(await done(files.read("many/sub/packed")), "packed" * 1000)
    equal(len(await done(files.list("many", depth=2))), 22)
    info = await done(files.get_info("many/7"))
    equal((info.name, info.size, info.owner), ("7", 1, "user"))
    await done(world.sandbox.commands.run("ln -s 7 many/link"))
    equal((await done(files.get_info("many/link"))).symlink_target, "/home/user/many/7")
    await raised(InvalidArgumentException, lambda: files.read("many"))
    await done(files.remove("many"))


async def signed_addresses(world):
    """A signed address needs no key, and is for one path, one way and one time."""
    sandbox = world.sandbox
    await done(sandbox.files.write("signed", "content"))
    url = sandbox.download_url("signed", use_signature_expiration=60)
    equal(await asyncio.to_thread(get, url), (200, b"content"))
    equal((await asyncio.to_thread(get, url.replace("signed", "/etc/passwd")))[0], 401)
    equal((await asyncio.to_thread(get, sandbox.download_url("signed", use_signature_expiration=-60)))[0], 401)


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


async def watched(world):
    files, events = world.sandbox.files, []
    await done(files.make_dir("watched"))
    is_async = world.Sandbox is AsyncSandbox
    watcher = await done(files.watch_dir("watched", *([events.append] if is_async else []), include_entry=True))
    await done(files.write("watched/new", "1"))
    for _ in range(100):
        if not is_async:
            events += watcher.get_new_events()
        if any(event.name == "new" and event.type.value == "create" for event in events):
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError(f"there is no event of the new file in {events}")
    equal([event.entry.path for event in events if event.name == "new"][0], "/home/user/watched/new")
    await done(watcher.stop())
    error = await raised(InvalidArgumentException, lambda: files.write("noted", "1", metadata={"author": "me"}))
    contains(str(error), "files of this server have no metadata")


async def terminal(world):
    shown = []
    pty = world.sandbox.pty
    if world.Sandbox is AsyncSandbox:
        handle = await pty.create(PtySize(24, 91), on_data=lambda data: shown.append(bytes(data)))
        await pty.send_stdin(handle.pid, b"stty size; exit 3\n")
        error = await raised(CommandExitException, handle.wait)
    else:
        handle = pty.create(PtySize(24, 91))
        pty.send_stdin(handle.pid, b"stty size; exit 3\n")
        error = await raised(CommandExitException, lambda: handle.wait(on_pty=lambda data: shown.append(bytes(data))))
    equal(error.exit_code, 3)
    contains(b"".join(shown).decode(), "24 91")


async def refused(world):
    """All that can't be is refused with its reason, and not accepted and ignored."""
    new = world.new
    for reason, call in {
        "network": lambda: new(network={"allow_out": ["1.1.1.1"]}),
        "volume": lambda: new(volume_mounts={"/data": "volume"}),
        "mcp": lambda: new(mcp={"exa": {"apiKey": "x"}}),
        "snapshot": lambda: world.sandbox.create_snapshot(),
        "fork": lambda: world.sandbox.fork(),
    }.items():
        contains(str(await raised(Exception, call)).lower(), reason)


NEWEST = [
    example,
    cells,
    callbacks,
    shown,
    contexts,
    other_languages,
    interrupted,
    pages,
    pause_and_connect,
    timeout_is_set,
    metrics,
    many_files,
    signed_addresses,
    watched,
    terminal,
    refused,
]
main({"sync": Sandbox, "async": AsyncSandbox}, CORE + NEWEST, "e2b", "e2b-code-interpreter")
