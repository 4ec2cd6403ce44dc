#: {"status": "out_of_memory", "env": {"A": "1"}, "preloaded": false}
# What waited with pandas could not be used, so its memory is not the program's.
print(len(bytearray(280 << 20)) >> 20)
if 0: import pandas
