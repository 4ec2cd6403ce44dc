#: {"status": "error"}
import asyncio


async def fail():
    raise ValueError("lost")


async def never():
    pass


async def main():
    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del task
    never()
    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        group.create_task(asyncio.sleep(5))


asyncio.run(main())
