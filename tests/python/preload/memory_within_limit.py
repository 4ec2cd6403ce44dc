# What is promised, less a plain interpreter's own.
print(len(bytearray(230 << 20)) >> 20)
