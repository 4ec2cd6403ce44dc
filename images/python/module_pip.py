"""``python -m pip``, and ``pip.main`` for programs that call it.

Both start the command ``pip`` of the sandbox with this interpreter. The command comes with the sandbox, not with the image.
"""

import os
import sys

_COMMAND = "/.isolator/commands/pip"


def _arguments(given):
    if not os.path.isdir(_COMMAND):
        sys.exit("pip: it asks the runner of a sandbox for packages, and this is not a sandbox of Isolator")
    return [sys.executable, _COMMAND, "python -m pip", *given]


def main(args=None):
    """Runs pip with these arguments, or those of the program. Returns its exit code."""
    import subprocess

    sys.stdout.flush()
    return subprocess.call(_arguments(sys.argv[1:] if args is None else args))


if __name__ == "__main__":
    command = _arguments(sys.argv[1:])
    os.execv(command[0], command)
