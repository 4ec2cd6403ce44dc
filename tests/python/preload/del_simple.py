# Without functions: the module's variables are no cycle.
class Thing:
    def __del__(self):
        print("del", self.name)


a = Thing()
a.name = "a"
_b = Thing()
_b.name = "b"
del a
c = Thing()
c.name = "c"
print("end")
