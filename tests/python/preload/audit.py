#: {"ways": ["bare"]}
import sys

def hook(event, args):
    # Not the look at the objects that are left at the end.
    if not event.startswith(("object.", "gc.", "sys._getframe")):
        print(event, file=sys.stderr)


sys.addaudithook(hook)
import json

open("/dev/null").close()
