import os
import sys

print("before")
for code in (0, 1, 255, 256):
    child = os.fork()
    if child == 0:
        print("child", os.getpid() == os.getpgid(0), os.getppid() != 1)
        os._exit(code % 256)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
child = os.fork()
if child == 0:
    1 / 0
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.register_at_fork(before=lambda: print("before"), after_in_child=lambda: print("in child"))
child = os.fork()
if child == 0:
    sys.exit(3)
print(os.wait()[1])
child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 4"], os.environ)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
