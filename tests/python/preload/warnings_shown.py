import warnings


def old():
    warnings.warn("old", DeprecationWarning, stacklevel=2)


for _ in range(3):
    old()
    warnings.warn("once per place")
warnings.warn("a future one", FutureWarning)
warnings.warn("not shown", PendingDeprecationWarning)
exec("import warnings; warnings.warn('elsewhere', DeprecationWarning)", {"__name__": "elsewhere"})
print("\d")
open("file", "w")
assert (1, "always")
print(len(__warningregistry__))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warnings.warn("caught")
    print(caught[0].filename, caught[0].lineno)
warnings.simplefilter("error")
try:
    old()
except DeprecationWarning as error:
    print(repr(error))
