#: {"status": "out_of_memory"}
print("before", flush=True)
blocks = []
while True:
    blocks.append(bytearray(b"x" * (16 << 20)))
