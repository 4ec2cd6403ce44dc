import asyncio

loop = asyncio.new_event_loop()


async def forever():
    try:
        await asyncio.sleep(100)
    finally:
        print("finally")


task = loop.create_task(forever(), name="left")
loop.run_until_complete(asyncio.sleep(0.01))


async def numbers():
    try:
        yield 1
    finally:
        print("closed")


generator = numbers()
print(loop.run_until_complete(anext(generator)))
print("end")
