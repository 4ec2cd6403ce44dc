# A program that takes apart what the interpreter ends with.
import sys


class Thing:
    def __del__(self):
        write(1, b"del\n")


from os import write

thing = Thing()
sys.modules.clear()
