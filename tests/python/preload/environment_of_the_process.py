#: {"preloaded": false}
# The kernel keeps the variables that a process was started with.
with open("/proc/self/environ") as file:
    print(sorted(line.partition("=")[0] for line in file.read().split("\0")))
