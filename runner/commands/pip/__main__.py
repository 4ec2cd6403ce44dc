"""The commands ``pip``, ``pip3``, ``python -m pip``, ``uv`` and ``uvx`` of a sandbox.

``python3 /.isolator/commands/pip NAME ARGUMENT...``: NAME is how the command was called. It runs with the interpreter of the
program that calls it, so it sees the same packages. It installs nothing itself: it asks the runner for a set of packages, through a
socket (``asking``), and prints what the real commands print.
"""

import os
import sys


def main():
    name, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("pip", [])
    # Names of packages and answers can have characters that the encoding of a stream does not have.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="backslashreplace")
    if name in ("uv", "uvx"):
        import uv as command
    else:
        import commands as command
    try:
        code = command.run(name, arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("ERROR: Operation cancelled by user\n")
        code = 130 if name in ("uv", "uvx") else 1
    except BrokenPipeError:
        # The reader of a pipe has gone. Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stderr.write("ERROR: Pipe to stdout was broken\n")
        code = 1
    return code


sys.exit(main())
