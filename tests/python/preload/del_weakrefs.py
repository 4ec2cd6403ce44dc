import functools
import json
import weakref


class Thing:
    pass


kept = Thing()
reference = weakref.ref(kept, lambda _: print("callback"))
proxies = weakref.WeakValueDictionary(kept=kept)
weakref.finalize(kept, print, "finalize", 1)


class Owner:
    def method(self):
        pass


owner = Owner()
weak_method = weakref.WeakMethod(owner.method, lambda _: print("method"))
json.kept = Thing()
on_json = weakref.ref(json.kept, lambda _: print("on json"))


@functools.lru_cache
def cached(x):
    return Thing()


on_cache = weakref.ref(cached(1), lambda _: print("cached"))
print("end")
