#: {"status": "out_of_memory"}
# What waited in the sandbox had memory of its own, which the program must not get.
print(len(bytearray(300 << 20)) >> 20)
