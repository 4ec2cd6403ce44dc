#: {"status": "error"}
import linecache

print(sorted(linecache.cache))
code = compile("def f():\n    raise KeyError('x')\nf()\n", "<made up>", "exec")
try:
    exec(code)
except KeyError:
    import traceback

    traceback.print_exc()
    traceback.print_stack()
    print(sorted(linecache.cache))
eval("1 +")
