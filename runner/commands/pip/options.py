"""Options of the commands: those that do something, those that change nothing here, and those that can't be."""

import os


class NotPossible(Exception):
    """Something that can't be done here, with what can be. ``is_placed`` says that it names its file and line."""

    def __init__(self, reason, is_placed=False):
        super().__init__(reason)
        self.is_placed = is_placed


class UsageError(Exception):
    """An option that the command does not have, or that lacks its value."""


# Which other spellings an option has.
SAME = {
    "-r": "--requirement", "--requirements": "--requirement", "-c": "--constraint", "--constraints": "--constraint", "-U": "--upgrade",
    "-q": "--quiet", "-v": "--verbose", "-h": "--help", "-V": "--version", "-y": "--yes", "-t": "--target", "-e": "--editable",
    "-i": "--index-url", "--pypi-url": "--index-url", "-f": "--find-links", "-I": "--ignore-installed", "-C": "--config-settings",
    "--config-setting": "--config-settings", "--default-index": "--index-url", "--index": "--extra-index-url",
    "--prerelease": "--pre", "--reinstall": "--force-reinstall",
}  # fmt: skip

_NO_INDEX = "the operator of this server chooses the index, and there is one for each language: leave {} out"
_IN_THE_SET = "packages are installed into the set of this sandbox, where programs find them: leave {} out"
_ONE_MACHINE = "packages are for this interpreter and this machine: leave {} out"
_ONLY_WHEELS = "only wheels are installed, so that nothing of a package runs meanwhile: leave {} out"

# Options of `pip install` that can't be, each with the reason. `=` marks those that take a value.
REFUSED = {
    "--editable=": "-e installs a folder, and only packages of the index can be installed: programs import modules of the workspace "
    "from there, and those of other folders if PYTHONPATH names them",
    "--index-url=": _NO_INDEX,
    "--extra-index-url=": _NO_INDEX,
    "--find-links=": _NO_INDEX,
    "--no-index": _NO_INDEX,
    "--target=": _IN_THE_SET,
    "--prefix=": _IN_THE_SET,
    "--root=": _IN_THE_SET,
    "--src=": _IN_THE_SET,
    "--python-version=": _ONE_MACHINE,
    "--platform=": _ONE_MACHINE,
    "--abi=": _ONE_MACHINE,
    "--implementation=": _ONE_MACHINE,
    "--ignore-requires-python": _ONE_MACHINE,
    "--no-binary=": _ONLY_WHEELS,
    "--config-settings=": _ONLY_WHEELS,
    "--global-option=": _ONLY_WHEELS,
    "--build-option=": _ONLY_WHEELS,
    "--pre": "versions before a release are installed only if a requirement names one, such as NAME==2.0rc1: leave {} out",
    "--no-deps": "a set has all that its packages need, so that they fit together: leave {} out",
    "--eager": "a requirement brings what it needs in versions that fit: leave {} out",
    "--require-hashes": "the hashes of the index are checked, and others can't be given: leave {} and the hashes out",
    "--hash=": "the hashes of the index are checked, and others can't be given: leave {} out",
    "--dry-run": "packages are resolved and installed at once: leave {} out",
    "--report=": "there are no reports: leave {} out, and see pip list --format=json",
    "--group=": "groups of pyproject.toml are not read: name the packages, or put them into a file for -r",
    "--log=": "there is no log: leave {} out",
    "--python=": "packages are for the Python of this sandbox: leave {} out",
}

# Options of `pip install` that do something here.
_INSTALL = {"--requirement=", "--constraint=", "--upgrade", "--quiet", "--verbose", "--help", "--upgrade-strategy="}

# Those that change nothing here, because the runner does the same without and with them.
_WITHOUT_EFFECT = {
    "--user", "--break-system-packages", "--no-cache-dir", "--no-cache", "--cache-dir=", "--disable-pip-version-check", "--no-input",
    "--no-warn-script-location", "--no-warn-conflicts", "--root-user-action=", "--progress-bar=", "--no-progress", "--no-color",
    "--color=", "--only-binary=", "--prefer-binary", "--no-build", "--no-build-isolation", "--use-pep517", "--check-build-dependencies",
    "--retries=", "--timeout=", "--default-timeout=", "--exists-action=", "--compile", "--no-compile", "--compile-bytecode",
    "--trusted-host=", "--proxy=", "--cert=", "--client-cert=", "--isolated", "--no-python-version-warning", "--debug", "--no-clean",
    "--force-reinstall", "--ignore-installed", "--use-feature=", "--use-deprecated=", "--require-virtualenv", "--system", "--native-tls",
    "--no-config", "--link-mode=", "--yes", "--strict", "--keyring-provider=",
}  # fmt: skip

INSTALL = _INSTALL | _WITHOUT_EFFECT | set(REFUSED)
COMMON = {"--quiet", "--verbose", "--help", "--version"} | _WITHOUT_EFFECT


def refusal_of_option(option):
    """The reason why an option can't be, if that is so."""
    option = SAME.get(option, option)
    for name in (option, option + "="):
        if name in REFUSED:
            return REFUSED[name].format(option)
    return None


def parse(arguments, known, short=None):
    """Splits arguments into options, as a list of names and values, and the rest. Options can stand anywhere, in short forms
    (``-qU``, ``-rfile``), in long ones, and abbreviated as far as they are clear."""
    same = {**SAME, **(short or {})}
    options, rest, left = [], [], list(arguments)
    while left:
        argument = left.pop(0)
        if argument == "--":
            return options, rest + left
        if not argument.startswith("-") or argument == "-":
            rest.append(argument)
            continue
        if argument.startswith("--"):
            name, has_value, value = argument.partition("=")
            name = _whole(same.get(name, name), known)
            following = ""
        else:
            name, value, has_value = same.get(argument[:2], argument[:2]), argument[2:], ""
            following = value
        if name in known:
            if has_value:
                raise UsageError("%s option does not take a value" % name)
            options.append((name, None))
            if following:
                left.insert(0, "-" + following)
        elif name + "=" in known:
            if not (has_value or following):
                if not left:
                    raise UsageError("%s option requires 1 argument" % name)
                value = left.pop(0)
            options.append((name, value.lstrip("=") if following else value))
        else:
            raise UsageError("no such option: %s" % name)
    return options, rest


def _whole(name, known):
    names = {it.rstrip("=") for it in known}
    if name in names:
        return name
    found = [it for it in names if it.startswith(name)]
    if len(found) > 1:
        raise UsageError("ambiguous option: %s (%s?)" % (name, ", ".join(sorted(found))))
    return found[0] if found else name


def of_environment(warn):
    """The options of `pip install` that variables give, such as PIP_CONSTRAINT. An index is named by the image, if it names one: that
    has no effect, which `warn` says."""
    found = []
    for variable, value in sorted(os.environ.items()):
        if not variable.startswith("PIP_") or not value:
            continue
        option = "--" + variable[4:].lower().replace("_", "-")
        option = SAME.get(option, option)
        is_flag = option in INSTALL
        if not (is_flag or option + "=" in INSTALL) or (is_flag and value.lower() in ("0", "no", "off", "false")):
            continue
        reason = refusal_of_option(option)
        if reason and option in _INDEX:
            warn("%s has no effect: the operator of this server chooses the index" % variable)
        elif reason:
            raise NotPossible("%s (the variable %s)" % (reason, variable))
        elif is_flag:
            found += [(option, None)] * (int(value) if value.isdigit() else 1)
        else:
            found += [(option, it) for it in (value.split() if option in _SEVERAL else [value])]
    return found


_INDEX = ("--index-url", "--extra-index-url", "--find-links", "--no-index")
_SEVERAL = ("--requirement", "--constraint")
