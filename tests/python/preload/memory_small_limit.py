#: {"memory_mb": 64}
block = bytearray(b"x" * (20 << 20))
print(len(block))
