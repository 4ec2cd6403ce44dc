import builtins


class Thing:
    def __del__(self, write=__import__("os").write):
        write(1, b"del\n")


builtins.thing = Thing()
print("end")
