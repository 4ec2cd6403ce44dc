"""``pip install``: what is missing is asked for, and what came is said as pip says it."""

import inventory
from asking import Refused, ask, clean, cut, normalized
from options import REFUSED, NotPossible, UsageError, refusal_of_option
from requirement_files import Requirement, packaging, read_file

# Commands of the sandbox. The packages of these names would take their place in Python, and find no network.
_OWN = ("pip", "uv")


class Wanted:
    """The requirements of a command line, and what is already there."""

    def __init__(self, given, names):
        self.requirements, self.constraints, self.is_upgrade = [], [], False
        files = []
        for option, value in given:
            if option in REFUSED or option + "=" in REFUSED:
                raise NotPossible(refusal_of_option(option))
            if option == "--upgrade":
                self.is_upgrade = True
            elif option == "--requirement":
                files.append(value)
            elif option == "--constraint":
                self.constraints += read_file(value, self.constraints)
            elif option == "--upgrade-strategy" and value != "only-if-needed":
                eager = value == "eager"
                raise NotPossible(refusal_of_option("--eager")) if eager else UsageError("invalid choice: %r" % value)
        self.requirements += [Requirement(name) for name in names]
        for file in files:
            self.requirements += read_file(file, self.constraints)
        if not names and not files:
            raise NotPossible('You must give at least one requirement to install (see "pip help install")')
        self.unneeded = [it for it in self.requirements if not it.is_needed()]
        needed = [it for it in self.requirements if it.is_needed()]
        self.own = [it for it in needed if it.name in _OWN]
        self.requirements = [it for it in needed if it.name not in _OWN]

    def look(self):
        """Splits them into those that the interpreter's packages satisfy, with the packages, and the others."""
        satisfied, missing = [], []
        packages = inventory.installed() if packaging() else {}
        for requirement in self.requirements:
            found = None
            if not self.is_upgrade and requirement.parsed:
                needed = packaging().requirements.Requirement(requirement.within(self.constraints))
                found = inventory.satisfied_by(needed, packages)
            if found:
                satisfied.append((requirement, found))
            else:
                missing.append(requirement)
        return satisfied, missing

    def limits(self, satisfied, missing):
        """The versions within which packages have to be that nothing asks for but other packages, if the set has them."""
        asked = {requirement.name for requirement in missing}
        others = [requirement for requirement, _ in satisfied] + [it for it in self.constraints if it.is_needed()]
        return [it for it in others if it.name not in asked and it.versions]


def get(wanted, missing, satisfied, show_progress):
    """Asks for the missing packages. Returns the packages of the set, and the names of the new ones."""
    if inventory.is_virtual():
        reason = "this is the Python of a virtual environment, which would not find them: leave it, and install for the sandbox's Python"
        raise NotPossible(reason)
    limits = wanted.limits(satisfied, missing)
    if limits and packaging() is None:
        raise NotPossible("versions of other packages are compared by the package packaging, which the image does not have: leave -c out")
    texts = {requirement.within(wanted.constraints) for requirement in missing}
    new = set()
    while True:
        packages, added = ask(sorted(texts), wanted.is_upgrade, show_progress)
        new |= added
        versions = {normalized(name): version for name, version in packages}
        # Only now it is known what comes along. Asking for a package by its limits then adds no other one.
        limited = {it.within(limits) for it in limits if it.name in versions and not _is_within(it, versions[it.name])}
        if limited <= texts:
            return packages, new
        texts |= limited


def _is_within(limit, version):
    return limit.parsed.specifier.contains(version, prereleases=True)


def run(given, names, output):
    """Installs. Returns the exit code."""
    wanted = Wanted(given, names)
    for requirement in wanted.unneeded:
        marker = requirement.marker.strip()
        output.say("Ignoring %s: markers %r don't match your environment" % (requirement.name, marker.replace('"', "'")))
    for requirement in wanted.own:
        output.say("Requirement already satisfied: %s in /.isolator/bin (the command of this sandbox)" % requirement.name)
        if requirement.versions:
            output.warn("%s comes with the sandbox: other versions can't be installed" % clean(cut(requirement.text)))
    satisfied, missing = wanted.look()
    said = set()
    for _, found in satisfied:
        for text, package, parent in found:
            _say_satisfied(output, said, text, package, parent)
    if not missing:
        return 0
    for requirement in missing:
        output.say("Collecting %s" % clean(requirement.within(wanted.constraints)))
    try:
        packages, new = get(wanted, missing, satisfied, lambda text: _show(output, text))
    except Refused as refused:
        return _refused(output, refused, missing)
    for requirement in missing:
        if requirement.name not in new:
            _say_there(output, said, requirement, packages)
    came = sorted(((name, version) for name, version in packages if normalized(name) in new), key=lambda it: it[0].lower())
    if came:
        output.say("Installing collected packages: %s" % ", ".join(name for name, _ in came))
        output.say("Successfully installed %s" % " ".join("%s-%s" % package for package in came))
    return 0


def _show(output, text):
    for line in text.splitlines():
        output.say("  " + line)


def _say_satisfied(output, said, text, package, parent):
    line = "Requirement already satisfied: %s in %s%s (%s)"
    line %= (clean(text), package.location, " (from %s)" % parent if parent else "", package.version)
    if line not in said:
        said.add(line)
        output.say(line)


def _say_there(output, said, requirement, packages):
    """One that the runner did not have to bring: it says the version, and the folder is where this interpreter finds it."""
    found = inventory.installed().get(requirement.name)
    version = next((version for name, version in packages if normalized(name) == requirement.name), found and found.version)
    if version is None:
        raise NotPossible("%s is not installed, and the runner did not bring it: report this" % requirement.name)
    place = " in %s" % found.location if found and found.version == version else ""
    line = "Requirement already satisfied: %s%s (%s)" % (clean(requirement.text), place, version)
    if line not in said:
        said.add(line)
        output.say(line)


def _refused(output, refused, missing):
    output.fail(refused.reason)
    if refused.kind == "no_match" and len(missing) == 1:
        output.fail("No matching distribution found for %s" % clean(cut(missing[0].text)))
    return 1
