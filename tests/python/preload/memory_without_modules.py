#: {"status": "out_of_memory", "files": {"numpy.py": ""}}
# An interpreter that has imported another numpy can't be used, and its memory is not the program's.
print(len(bytearray(280 << 20)) >> 20)
if 0: import pandas
