#: {"unordered": true, "ways": ["bare"]}
# What is still in a buffer when the program ends is written.
import functools
import json
import os
import threading


def stream():
    return os.fdopen(os.dup(1), "w", buffering=1000)


a_global = stream()
a_global.write("a global\n")
json.left = stream()
json.left.write("on a module\n")


class Holder:
    kept = stream()


Holder.kept.write("on a class\n")
ring = [stream()]
ring.append(ring)
ring[0].write("in a ring\n")
del ring


def function(kept=stream()):
    kept.write("a default\n")


function()


@functools.lru_cache
def cached():
    return stream()


cached().write("in a cache\n")
local = threading.local()
local.kept = stream()
local.kept.write("of a thread\n")
json.JSONDecoder.kept = stream()
json.JSONDecoder.kept.write("on a class of a module\n")
