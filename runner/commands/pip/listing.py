"""The commands of pip that say what is there."""

import json

import inventory
from asking import clean, normalized
from options import NotPossible, UsageError
from requirement_files import Requirement, packaging, read_file

# Those that pip leaves out of its own list.
_TOOLS = {"pip", "setuptools", "wheel", "distribute"}


def _chosen(given):
    """The packages that options of lists leave, sorted."""
    import site

    given_names = [option for option, _ in given]
    paths = [value for option, value in given if option == "--path"] or None
    packages = inventory.installed(paths)
    excluded = {normalized(value) for option, value in given if option == "--exclude"}
    kept = [package for package in packages.values() if package.key not in excluded]
    if "--user" in given_names:
        kept = [package for package in kept if package.location == site.getusersitepackages()]
    for option, is_wanted in (("--editable", True), ("--exclude-editable", False)):
        if option in given_names:
            kept = [package for package in kept if _is_editable(package) == is_wanted]
    if "--not-required" in given_names:
        needed = {normalized(it.name) for package in packages.values() for it in _requirements(package)}
        kept = [package for package in kept if package.key not in needed]
    return sorted(kept, key=lambda package: package.name.lower())


def _is_editable(package):
    return bool(((package.direct() or {}).get("dir_info") or {}).get("editable"))


def _requirements(package):
    need_packaging()
    return package.requirements()


def need_packaging():
    if packaging() is None:
        raise NotPossible("this needs the package packaging, which reads requirements, and the image does not have it")


def list(given, names, output):
    """``pip list``."""
    given_names = [option for option, _ in given]
    if names:
        raise UsageError("pip list takes no names: use pip show %s" % names[0])
    for option in ("--outdated", "--uptodate"):
        if option in given_names:
            raise NotPossible("a sandbox has no network, so newer versions are not known: pip install -U NAME gets the newest")
    form = next((value for option, value in reversed(given) if option == "--format"), "columns")
    packages, is_long = _chosen(given), "--verbose" in given_names
    if form == "json":
        rows = [{"name": package.name, "version": package.version} for package in packages]
        for row, package in zip(rows, packages):
            if is_long:
                row.update(location=package.location, installer=package.installer())
        output.print(json.dumps(rows))
    elif form == "freeze":
        for package in packages:
            output.print("%s==%s" % (package.name, package.version))
    elif form == "columns":
        heads = ["Package", "Version"] + (["Location", "Installer"] if is_long else [])
        rows = [[it.name, it.version] + ([it.location, it.installer()] if is_long else []) for it in packages]
        for line in inventory.table(rows, heads) if rows else ():
            output.print(line)
    else:
        raise UsageError("option --format: invalid choice: %r (choose from 'columns', 'freeze', 'json')" % form)
    return 0


def freeze(given, names, output):
    """``pip freeze``."""
    if names:
        raise UsageError("pip freeze takes no names")
    given_names = [option for option, _ in given]
    if "--requirement" in given_names:
        raise NotPossible("the order of a file is not followed: leave -r out")
    for package in sorted(_chosen(given), key=lambda it: it.key):
        if package.key in _TOOLS and "--all" not in given_names:
            continue
        url = (package.direct() or {}).get("url")
        output.print("%s @ %s" % (package.name, clean(url)) if url else "%s==%s" % (package.name, package.version))
    return 0


def show(given, names, output):
    """``pip show``."""
    if not names:
        return output.fail("Please provide a package name or names.")
    packages = inventory.installed()
    found = [packages.get(normalized(name)) for name in names]
    missing = sorted({clean(name) for name, package in zip(names, found) if package is None})
    if missing:
        output.warn("Package(s) not found: %s" % ", ".join(missing))
    with_files = any(option == "--files" for option, _ in given)
    for at, package in enumerate(filter(None, found)):
        if at:
            output.print("---")
        for line in described(package, packages):
            output.print(line)
        if with_files:
            files = package.files()
            output.print("Files:")
            for file in ["Cannot locate RECORD or installed-files.txt"] if files is None else files:
                output.print("  " + file)
    return 0 if any(found) else 1


def described(package, packages):
    """The lines of `pip show` for a package."""
    needs = sorted({it.name for it in _requirements(package)}, key=str.lower) if packaging() else []
    needed_by = sorted(
        (other.name for other in packages.values() if packaging() and package.key in {normalized(it.name) for it in _requirements(other)}),
        key=str.lower,
    )
    return [
        "Name: " + package.name,
        "Version: " + package.version,
        "Summary: " + package.field("Summary"),
        "Home-page: " + package.home(),
        "Author: " + package.field("Author"),
        "Author-email: " + package.field("Author-email"),
        "License-Expression: " + package.field("License-Expression")
        if package.field("License-Expression")
        else "License: " + package.license(),
        "Location: " + package.location,
        "Requires: " + ", ".join(map(clean, needs)),
        "Required-by: " + ", ".join(needed_by),
    ]


def check(given, names, output):
    """``pip check``."""
    if names:
        raise UsageError("pip check takes no names")
    need_packaging()
    found = inventory.broken(inventory.installed())
    for line in found or ["No broken requirements found."]:
        output.print(line)
    return 1 if found else 0


def uninstall(given, names, output):
    """``pip uninstall``: nothing goes, and each package has its reason."""
    packages, code = inventory.installed(), 0
    asked = [normalized(Requirement(name).name) for name in names]
    for option, value in given:
        if option == "--requirement":
            asked += [it.name for it in read_file(value, [])]
    if not asked:
        return output.fail('You must give at least one requirement to uninstall (see "pip help uninstall")')
    for name in asked:
        package = packages.get(name)
        if package is None:
            output.warn("Skipping %s as it is not installed." % name)
            continue
        place = "in the set of this sandbox, which only grows" if package.is_of_a_set else "in %s, which can't be changed" % package.location
        code = output.fail("%s %s stays: it is %s; another version can be installed over it" % (package.name, package.version, place))
    return code


def config(given, names, output):
    """``pip config``."""
    if names and names[0] in ("list", "debug"):
        # There are no values.
        return 0
    raise NotPossible("pip config: there is no configuration, because the operator of the server chooses the index")


def cache(given, names, output):
    """``pip cache``."""
    raise NotPossible("pip cache: there is no cache in the sandbox, because the server keeps the packages that it has installed")
