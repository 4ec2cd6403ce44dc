#: {"hide": ["/docker/\\w+", "started \\d+"]}
import ctypes
import os
import resource
import signal
import sys
import threading

pid, parent = os.getpid(), os.getppid()
print(os.getpgid(0) == pid, os.getsid(0) == os.getsid(parent), os.getpgid(parent) == pid, parent != 1)
print(open(f"/pro\x63/{parent}/comm").read(), open("/pro\x63/self/comm").read())
for number in sorted(signal.valid_signals()):
    print(number, signal.getsignal(number))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending(), signal.set_wakeup_fd(-1))
print(signal.getitimer(signal.ITIMER_REAL), signal.getitimer(signal.ITIMER_PROF))
wanted = ("State", "Umask", "Tracer", "Uid", "Gid", "FDSize", "Groups", "Threads", "Sig", "Shd", "Cap", "NoNew",
          "Seccomp", "Cpus", "CoreD", "THP", "untag", "x86")
for line in open("/pro\x63/self/status"):
    if line.startswith(wanted) and not line.startswith("SigQ"):
        print(line.strip())
mask = os.umask(0)
print(oct(mask), os.getuid(), os.getgid(), os.getgroups(), os.getresuid())
for name in dir(resource):
    if name.startswith("RLIMIT_"):
        print(name, resource.getrlimit(getattr(resource, name)))
print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.cpu_count(), os.process_cpu_count())
for name in ("oom_score_adj", "coredump_filter", "loginuid", "sessionid", "limits", "cgroup",
                      "personality", "wchan", "attr/current"):
    try:
        print(name, open(f"/pro\x63/self/{name}").read())
    except OSError as error:
        print(error)
print(threading.active_count(), threading.current_thread(), threading.main_thread().native_id == pid)
print(os.listdir("/pro\x63/self/task") == [str(pid)], threading.get_native_id() == pid, threading.stack_size())
libc = ctypes.CDLL(None)
# Dumpable, the signal at the parent's death, the subreaper, the timer slack, no new privileges.
print([libc.prctl(option, 0, 0, 0, 0) for option in (3, 30, 39)])
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError as error:
    print(error)
try:
    print(os.get_terminal_size())
except OSError as error:
    print(error)
print(sys.stdin.isatty(), os.isatty(1), os.ctermid(), os.nice(0))
