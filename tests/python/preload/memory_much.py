# Close to the limit of 256 MiB.
block = bytearray(200 << 20)
for place in range(0, len(block), 4096):
    block[place] = 1
print(len(block), sum(block[::4096]))
