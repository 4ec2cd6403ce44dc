"""The command line of uv: ``uv pip``, and the reasons why the rest of it can't be."""

import sys
import time

import install
import inventory
import options
from asking import Refused, clean, normalized
from options import NotPossible, UsageError

_INSTALL = "use uv pip install NAME"
# Other commands of uv, each with what can be done.
_NOT_THERE = {
    "add": "there is no project with an environment of its own in a sandbox: " + _INSTALL,
    "remove": "there is no project with an environment of its own in a sandbox, and packages of its set stay",
    "sync": "there is no project with an environment of its own in a sandbox: " + _INSTALL + ", or uv pip install -r requirements.txt",
    "lock": "nothing is resolved without being installed: " + _INSTALL + ", and then uv pip freeze",
    "init": "there is no project with an environment of its own in a sandbox: run programs with python3",
    "run": "programs run with the sandbox's Python: use python3, after uv pip install NAME",
    "tool": "tools run with the sandbox's Python: " + _INSTALL + ", then the command of the package is in the path",
    "python": "a sandbox has the Python of its image, and no network to get another one",
    "venv": "the sandbox's Python is the environment: " + _INSTALL,
    "build": "nothing is built here: programs import modules of the workspace from there",
    "publish": "a sandbox has no network",
    "export": "there is no project with an environment of its own in a sandbox: use uv pip freeze",
    "tree": "there is no project with an environment of its own in a sandbox: use uv pip show NAME",
    "cache": "there is no cache in a sandbox: the server keeps the packages that it has installed",
    "self": "this uv comes with the sandbox",
}
_NO_PIP = {
    "uninstall": "packages of the image and of the sandbox's set stay; another version can be installed over one",
    "compile": _NOT_THERE["lock"],
    "sync": "packages that are not in the file would have to go, and they stay: use uv pip install -r FILE",
    "tree": "use uv pip show NAME",
}
_LISTS = {"list", "freeze", "show", "check"}


def run(name, arguments):
    """Runs the command. Returns its exit code."""
    if name == "uvx":
        arguments = ["tool", *arguments]
    left = [it for it in arguments if it not in ("-q", "--quiet", "-v", "--verbose", "--no-progress", "--offline")]
    quiet = len([it for it in arguments if it in ("-q", "--quiet")])
    if left[:1] in (["--version"], ["-V"]) or left[:2] == ["self", "version"]:
        print("uv of the sandbox (from /.isolator/commands/pip)")
        return 0
    if not left or left[0] in ("help", "-h", "--help"):
        print("Usage: uv pip <install|list|freeze|show|check> [OPTIONS]\n\nThis uv asks the server of the sandbox for packages.")
        return 0 if left else 2
    if left[0] != "pip":
        reason = _NOT_THERE.get(left[0])
        return _fail("uv %s: %s" % (left[0], reason) if reason else "unrecognized subcommand '%s'" % left[0])
    if len(left) < 2 or left[1] in ("help", "-h", "--help"):
        print("Usage: uv pip <install|list|freeze|show|check> [OPTIONS]")
        return 0 if len(left) > 1 else 2
    if left[1] in _NO_PIP:
        return _fail("uv pip %s: %s" % (left[1], _NO_PIP[left[1]]))
    if left[1] != "install" and left[1] not in _LISTS:
        return _fail("unrecognized subcommand '%s'" % left[1])
    try:
        return _install(left[2:], quiet) if left[1] == "install" else _list(left[1], left[2:])
    except (UsageError, NotPossible) as error:
        return _fail(error)


def _fail(reason, code=2):
    sys.stdout.flush()
    sys.stderr.write("error: %s\n" % (reason if isinstance(reason, NotPossible) else clean(reason)))
    return code


def _list(command, arguments):
    import commands

    if command == "check":
        return _check(arguments)
    # The same texts as pip's, with the errors of uv.
    return commands.run("uv pip", [command, *arguments])


def _check(arguments):
    import listing

    given, names = options.parse(arguments, options.COMMON)
    if any(option == "--help" for option, _ in given):
        print("Usage: uv pip check [OPTIONS]")
        return 0
    if names:
        raise UsageError("unexpected argument '%s' found" % names[0])
    listing.need_packaging()
    packages = inventory.installed()
    found = inventory.broken(packages)
    sys.stderr.write("Checked %s\n" % _count(len(packages)))
    for line in found:
        sys.stderr.write(line + "\n")
    if not found:
        sys.stderr.write("All installed packages are compatible\n")
    return 1 if found else 0


def _count(number):
    return "%d package%s" % (number, "" if number == 1 else "s")


def _install(arguments, quiet):
    given, names = options.parse(arguments, options.INSTALL, {"-p": "--python", "-P": "--upgrade-package"})
    if any(option == "--help" for option, _ in given):
        print("Usage: uv pip install [OPTIONS] <PACKAGE|--requirements <FILE>>")
        return 0
    if not names and not any(option == "--requirement" for option, _ in given):
        raise UsageError("the following required arguments were not provided:\n  <PACKAGE|--requirements <REQUIREMENTS>>")

    def say(line):
        if not quiet:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    began = time.monotonic()
    wanted = install.Wanted(given, names)
    satisfied, missing = wanted.look()
    audited = len(satisfied) + len(wanted.own)
    if missing:
        before = inventory.installed()
        try:
            packages, new = install.get(wanted, missing, satisfied, say)
        except Refused as refused:
            return _fail(NotPossible(refused.reason), 1 if refused.kind == "no_match" else 2)
        came = sorted((name, version) for name, version in packages if normalized(name) in new)
        if came:
            took = _took(began)
            say("Resolved %s in %s" % (_count(len(packages)), took))
            say("Installed %s in %s" % (_count(len(came)), took))
            for name, version in came:
                there = before.get(normalized(name))
                if there and there.version != version:
                    say(" - %s==%s" % (there.name, there.version))
                say(" + %s==%s" % (name, version))
            return 0
        audited += len(missing)
    say("Audited %s in %s" % (_count(audited), _took(began)))
    return 0


def _took(began):
    seconds = time.monotonic() - began
    return "%.2fs" % seconds if seconds >= 1 else "%dms" % (seconds * 1000)
