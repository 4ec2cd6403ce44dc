#: {"stdin": "one\ntwo\n"}
import os
import stat
import subprocess

# Who owns them, and what else can be told of them.
for fd in range(3):
    status = os.fstat(fd)
    print(fd, stat.filemode(status.st_mode), status.st_uid, status.st_gid, flush=True)

# As files, by every name that they have.
with open("/dev/stdout", "w") as out, open("/dev/fd/1", "w") as again, open("/dev/stderr", "w") as err:
    print("to stdout", file=out, flush=True)
    print("to number 1", file=again, flush=True)
    print("to stderr", file=err)
subprocess.run("echo from a child > /dev/stdout; echo complaint > /dev/stderr", shell=True, check=True)
with open("/dev/stdin") as stdin:
    print(stdin.read().split())
