#: {"stdin": "from stdin", "args": ["first"]}
import os
import sys

print(sys.argv, sys.orig_argv, len(os.listdir("/pro\x63/self/fd")), sys.path[0], flush=True)
if len(sys.argv) < 4:
    os.execv(sys.executable, [sys.executable, *sys.argv, "more"])
print(sys.stdin.read(), list(os.environ))
