import gc

gc.collect()
gc.set_debug(gc.DEBUG_SAVEALL)


class Ring:
    pass


ring = Ring()
ring.me = ring
del ring
print(gc.collect() > 0, [type(thing).__name__ for thing in gc.garbage if isinstance(thing, Ring)])
gc.set_debug(0)
gc.garbage.clear()
seen = []
gc.callbacks.append(lambda phase, info: seen.append((phase, sorted(info))))
gc.collect()
print(seen)
