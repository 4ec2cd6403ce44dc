#: {"hide": ["0x[0-9a-f]+"]}
import sys
import weakref


class Thing:
    pass


printed, written, kept = Thing(), Thing(), Thing()
holders = [
    weakref.ref(printed, print),
    weakref.ref(written, sys.stdout.write),
    weakref.ref(kept, [].append),
]
print("end")
