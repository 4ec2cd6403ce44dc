"""The packages that the interpreter of the calling program finds: of the image, of the set, and of its own folders."""

import importlib.metadata
import os
import re
import site
import sys

from asking import clean, normalized
from requirement_files import packaging

# The name of a folder with a package's description.
_DESCRIPTION = re.compile(r"/([A-Za-z0-9][\w.]*)-([^/-]+)\.dist-info$")
# The set of this sandbox, wherever the engine has it.
_SETS = ("/.isolator/packages/", "/dev/shm/.isolator-packages/")


class Package:
    """An installed package. Only what is asked for is read of its description, because there can be many packages."""

    def __init__(self, distribution):
        self._distribution, self._name = distribution, None
        place = str(getattr(distribution, "_path", ""))
        found = _DESCRIPTION.search(place)
        if found and os.path.exists(os.path.join(place, "METADATA")):
            self.key, self.version = normalized(found[1]), clean(found[2])
        else:
            self.key, self.version = normalized(self.name), clean(distribution.version)

    @property
    def name(self):
        if self._name is None:
            self._name = clean(self._distribution.metadata["Name"])
        return self._name

    @property
    def location(self):
        return clean(os.path.abspath(str(self._distribution.locate_file(""))))

    @property
    def is_of_a_set(self):
        return self.location.startswith(_SETS)

    def field(self, name):
        value = self._distribution.metadata[name]
        return "" if value in (None, "UNKNOWN") else clean(value)

    def license(self):
        """The expression of newer packages, or the text of older ones."""
        return self.field("License-Expression") or self.field("License")

    def home(self):
        page = self.field("Home-page")
        urls = self._distribution.metadata.get_all("Project-URL") or []
        pairs = [url.partition(",") for url in urls]
        return page or next((clean(url.strip()) for name, _, url in pairs if name.strip().lower() in ("homepage", "home")), "")

    def installer(self):
        return clean((self._distribution.read_text("INSTALLER") or "").strip())

    def direct(self):
        """Where it comes from, if not from an index."""
        import json

        text = self._distribution.read_text("direct_url.json")
        try:
            return json.loads(text) if text else None
        except ValueError:
            return None

    def files(self):
        found = self._distribution.files
        return None if found is None else sorted(clean(file) for file in found)

    def requirements(self, extras=()):
        """What it needs with these extras, as far as markers hold here. Needs the library."""
        library = packaging().requirements
        found = []
        for text in self._distribution.requires or []:
            try:
                needed = library.Requirement(text)
                holds = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in (*extras, ""))
            except Exception:
                # A package can have anything in its description.
                continue
            if holds:
                found.append(needed)
        return found


def installed(paths=None):
    """All packages by their normalized names, each as the interpreter finds it first."""
    found = {}
    for distribution in importlib.metadata.distributions(path=search_path() if paths is None else paths):
        try:
            package = Package(distribution)
        except Exception:
            # Half a package, without a name or a version.
            continue
        if package.key != "none":
            found.setdefault(package.key, package)
    return found


def search_path():
    """Where a program of this interpreter looks, without the folder of this command."""
    importlib.invalidate_caches()
    folders = [folder for folder in sys.path if folder != os.path.dirname(os.path.abspath(__file__))]
    own = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    if own and own not in folders and os.path.isdir(own):
        # It came after this command was started. Its place is before the packages of the image.
        of_image = site.getsitepackages()
        folders.insert(next((at for at, folder in enumerate(folders) if folder in of_image), len(folders)), own)
    return folders


def is_virtual():
    """Whether the interpreter is one of a virtual environment, which does not look into sets."""
    return sys.prefix != sys.base_prefix and not site.ENABLE_USER_SITE


def fits(needed, packages):
    """The package that satisfies a requirement of the library, or None."""
    package = packages.get(normalized(needed.name))
    if package is None or not needed.specifier.contains(package.version, prereleases=True):
        return None
    return package


def satisfied_by(needed, packages):
    """The packages that together satisfy a requirement, each with the text and the parent that ask for it; None if one is missing."""
    found, seen, left = [], set(), [(needed, "")]
    while left:
        needed, parent = left.pop(0)
        mark = (normalized(needed.name), frozenset(needed.extras), str(needed.specifier))
        if mark in seen:
            continue
        seen.add(mark)
        package = fits(needed, packages)
        if package is None:
            return None
        name = needed.name + ("[%s]" % ",".join(sorted(needed.extras)) if needed.extras else "")
        found.append((name + str(needed.specifier), package, parent))
        chain = package.name if not parent else "%s->%s" % (package.name, parent)
        left += [(it, chain) for it in package.requirements(needed.extras)]
    return found


def broken(packages):
    """The sentences of `pip check`, one for each requirement that is not satisfied."""
    found = []
    for package in sorted(packages.values(), key=lambda it: it.key):
        for needed in package.requirements():
            there = packages.get(normalized(needed.name))
            if there is None:
                found.append("%s %s requires %s, which is not installed." % (package.name, package.version, clean(needed.name)))
            elif fits(needed, packages) is None:
                said = (package.name, package.version, clean(needed.name), clean(needed.specifier), there.name, there.version)
                found.append("%s %s has requirement %s%s, but you have %s %s." % said)
    return found


def table(rows, heads):
    """Rows as columns below their heads."""
    rows = [heads, *rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(heads))]
    lines = [" ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    lines.insert(1, " ".join("-" * width for width in widths))
    return lines
