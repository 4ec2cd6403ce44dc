#: {"hide": ["\\[\\d+\\]"]}
import fcntl
import os
import stat

for fd in sorted(map(int, os.listdir("/pro\x63/self/fd"))):
    try:
        status = os.fstat(fd)
    except OSError:
        # The listing's own.
        continue
    link = os.readlink(f"/pro\x63/self/fd/{fd}")
    flags = fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, fcntl.F_GETFD)
    print(fd, link, stat.S_IFMT(status.st_mode), flags, os.get_inheritable(fd))
print(os.open("/dev/null", os.O_RDONLY))
for fd in range(3):
    print(fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ), os.get_blocking(fd))
