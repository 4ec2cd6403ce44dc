import importlib.util
import marshal
import os
import struct
import sys
import warnings

# Compiles the files in the folder "s", whose names are numbers. For each that compiles it prints its number, the length
# of its bytecode, and the bytecode. Nothing of the files runs.

warnings.simplefilter("ignore")
sys.setrecursionlimit(5000)
out = sys.stdout.buffer
for name in sorted(os.listdir("s"), key=int):
    with open("s/" + name, "rb") as file:
        source = file.read()
    try:
        code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError, UnicodeError):
        continue
    # Bytecode that is used without comparing it with its source: a set never changes.
    flags = (1).to_bytes(4, "little")
    made = importlib.util.MAGIC_NUMBER + flags + importlib.util.source_hash(source) + marshal.dumps(code)
    out.write(struct.pack(">II", int(name), len(made)))
    out.write(made)
out.write(struct.pack(">II", 0xFFFFFFFF, 0))
out.flush()
