"""The command line of pip."""

import sys

import options
from asking import clean
from options import NotPossible, UsageError

_COMMANDS = {
    "install": "Install packages.",
    "uninstall": "Say why a package stays.",
    "list": "List installed packages.",
    "show": "Show information about installed packages.",
    "freeze": "Output installed packages in requirements format.",
    "check": "Verify installed packages have compatible dependencies.",
    "config": "Show that there is no configuration.",
    "cache": "Show that there is no cache.",
    "help": "Show help for commands.",
}

_NO_NETWORK = "a sandbox has no network"
# Commands of pip that can't be, each with what can be done.
_NOT_THERE = {
    "download": _NO_NETWORK + ", and packages are installed from the index by the server: use pip install",
    "wheel": "nothing is built here, and packages are installed from the index by the server: use pip install",
    "lock": "nothing is resolved without being installed: use pip install, and then pip freeze",
    "search": _NO_NETWORK + ": pip install says whether a package is there",
    "index": _NO_NETWORK + ": pip install says whether a package is there, and in which versions",
    "hash": "hashes are checked by the server when it installs: use python3 -c 'import hashlib; …' for other files",
    "inspect": "there is no report in this form: use pip list --format=json and pip show",
    "debug": "there is nothing to debug: pip asks the runner of the sandbox for packages",
    "completion": "there is no completion for this command",
}

_USAGE = {
    "install": "[options] <requirement specifier> ...\n  {0} install [options] -r <requirements file> ...",
    "list": "[options]",
    "show": "[options] <package> ...",
    "freeze": "[options]",
    "check": "[options]",
    "uninstall": "[options] <package> ...",
    "config": "list",
    "cache": "info",
}

_OF_LISTS = {"--local", "--user", "--path=", "--exclude=", "--exclude-editable", "--editable"}
_OF = {
    "install": options.INSTALL,
    "uninstall": options.COMMON | {"--requirement="},
    "list": options.COMMON | _OF_LISTS | {"--format=", "--outdated", "--uptodate", "--not-required", "--include-editable", "--pre"},
    "freeze": options.COMMON | _OF_LISTS | {"--all", "--requirement="},
    "show": options.COMMON | {"--files"},
    "check": options.COMMON,
    "config": options.COMMON,
    "cache": options.COMMON,
}
_SHORT = {
    "list": {"-l": "--local", "-o": "--outdated", "-u": "--uptodate", "-e": "--editable"},
    "freeze": {"-l": "--local"},
    "show": {"-f": "--files"},
}


class Output:
    """Standard output and standard error as pip uses them: `-q` takes away what is only for information, `-qq` warnings, too."""

    def __init__(self, quiet=0):
        self.quiet = quiet

    def say(self, line=""):
        if self.quiet < 1:
            self.print(line)

    def print(self, line=""):
        sys.stdout.write(line + "\n")

    def warn(self, line):
        if self.quiet < 2:
            self._to_stderr("WARNING: " + line)

    def fail(self, reason):
        if self.quiet < 3:
            self._to_stderr("ERROR: " + reason)
        return 1

    def _to_stderr(self, text):
        sys.stdout.flush()
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def run(name, arguments):
    """Runs the command. Returns its exit code."""
    try:
        first, command, rest = _split(arguments)
    except UsageError as error:
        return _misused(name, "", error)
    if "--version" in first or "-V" in first:
        version = "%d.%d" % sys.version_info[:2]
        print("pip of the sandbox from /.isolator/commands/pip (python %s)" % version)
        return 0
    if command is None or command == "help" or "--help" in first or "-h" in first:
        return _help(name, rest[0] if command == "help" and rest else None if command == "help" else command)
    if command in _NOT_THERE:
        return Output().fail("pip %s: %s" % (command, _NOT_THERE[command]))
    if command not in _COMMANDS:
        return Output().fail(_unknown(command))
    try:
        given, names = options.parse([*first, *rest], _OF[command], _SHORT.get(command))
    except UsageError as error:
        return _misused(name, command, error)
    if any(option == "--help" for option, _ in given):
        return _help(name, command)
    output = Output(sum(option == "--quiet" for option, _ in given))
    try:
        if command == "install":
            import install

            # What a variable says comes before the command line.
            said = options.of_environment(output.warn)
            output.quiet += sum(option == "--quiet" for option, _ in said)
            return install.run(said + given, names, output)
        import listing

        return getattr(listing, command)(given, names, output)
    except UsageError as error:
        return _misused(name, command, error)
    except NotPossible as error:
        return output.fail(str(error))


def _split(arguments):
    """The options before the command, the command, and the rest."""
    first, left = [], list(arguments)
    while left and left[0].startswith("-"):
        argument = left.pop(0)
        first.append(argument)
        option = options.SAME.get(argument, argument)
        if option + "=" in options.COMMON and left:
            first.append(left.pop(0))
    return (first, left[0], left[1:]) if left else (first, None, [])


def _unknown(command):
    import difflib

    close = difflib.get_close_matches(command, [*_COMMANDS, *_NOT_THERE], 1)
    return 'unknown command "%s"%s' % (clean(command), ' - maybe you meant "%s"' % close[0] if close else "")


def _misused(name, command, error):
    sys.stdout.flush()
    sys.stderr.write("\nUsage:   \n  %s\n\n%s\n" % (_usage(name, command), clean(error)))
    return 2


def _usage(name, command):
    return "%s %s" % (name, " ".join(filter(None, [command, _USAGE.get(command, "<command> [options]").format(name)])))


def _help(name, command):
    if command is not None and command not in _COMMANDS:
        reason = _NOT_THERE.get(command)
        return Output().fail("pip %s: %s" % (command, reason) if reason else _unknown(command))
    print("\nUsage:   \n  %s" % _usage(name, command or ""))
    if command:
        print("\nDescription:\n  %s" % _COMMANDS[command])
        print("\nOptions:\n  %s" % " ".join(sorted(option.rstrip("=") for option in _OF.get(command, ()) if option not in options.REFUSED)))
    else:
        print("\nCommands:")
        for known, text in _COMMANDS.items():
            print("  %-27s %s" % (known, text))
        print("\nThis pip asks the server of the sandbox for packages, which has an index. The sandbox itself has no network.")
    return 0
