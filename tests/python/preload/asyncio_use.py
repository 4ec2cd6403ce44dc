import asyncio
import os
import signal
import sys


async def worker(name, queue, found):
    while True:
        item = await queue.get()
        found.append((name, item))
        queue.task_done()


async def main():
    queue, found = asyncio.Queue(), []
    tasks = [asyncio.create_task(worker(i, queue, found)) for i in range(2)]
    for item in range(4):
        queue.put_nowait(item)
    await queue.join()
    for task in tasks:
        task.cancel()
    print(found, await asyncio.gather(*tasks, return_exceptions=True))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print(input()[::-1])", stdin=-1, stdout=-1)
    print(await process.communicate(b"abc\n"), process.returncode)
    loop = asyncio.get_running_loop()
    got = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, got.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(got.wait(), 5)
    print(await asyncio.to_thread(lambda: 5), type(loop), loop.get_debug())
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    server.close()
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(5)
    except TimeoutError as error:
        print(repr(error))


asyncio.run(main())
