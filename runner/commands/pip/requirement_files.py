"""Requirements of a command line and of files, and the reasons why one of them can't be installed."""

import os
import re

from asking import clean, cut, normalized
from options import NotPossible, refusal_of_option

_LONGEST_FILE = 1 << 20
_DEEPEST = 20
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_COMMENT = re.compile(r"(^|\s+)#.*$")
_NAME = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(\[[^\]]*\])?\s*(.*)$", re.S)
_ARCHIVES = (".whl", ".tar.gz", ".tgz", ".tar.bz2", ".zip", ".tar.xz")
# Options of a file that change nothing here.
_WITHOUT_EFFECT = ("--only-binary", "--prefer-binary", "--trusted-host", "--use-feature")


class Requirement:
    """A package that is asked for. ``parsed`` is what the library ``packaging`` makes of it, if the image has that."""

    def __init__(self, text):
        self.text = text.strip()
        reason = _elsewhere(self.text)
        if reason:
            raise NotPossible("%s %s: only packages of the index can be installed, by name and versions" % (clean(cut(self.text)), reason))
        found = _NAME.match(self.text)
        if not found:
            raise NotPossible("Invalid requirement: %r: it does not begin with the name of a package" % cut(self.text))
        self.name = normalized(found[1])
        self.extras = found[2] or ""
        self.versions, self.has_marker, self.marker = found[3].partition(";")
        self.versions = "".join(self.versions.split())
        if self.versions.startswith("(") and self.versions.endswith(")"):
            self.versions = self.versions[1:-1]
        self.parsed = None
        library = packaging()
        if library:
            try:
                self.parsed = library.requirements.Requirement(self.text)
            except (library.requirements.InvalidRequirement, RecursionError) as error:
                reason = str(error).splitlines()[0]
                raise NotPossible("Invalid requirement: %r: %s" % (cut(self.text), cut(reason))) from None

    def is_needed(self):
        """Whether its marker holds for this interpreter. Without the library, that is for the server to say."""
        if not self.parsed or self.parsed.marker is None:
            return True
        try:
            return self.parsed.marker.evaluate()
        except Exception as error:
            raise NotPossible("Invalid requirement: %r: its marker can't be evaluated: %s" % (cut(self.text), cut(clean(error)))) from None

    def within(self, constraints):
        """Its text, with the versions that constraints of the same name leave."""
        versions = [self.versions, *(it.versions for it in constraints if it.name == self.name and it.is_needed())]
        text = self.name + self.extras + ",".join(filter(None, dict.fromkeys(versions)))
        # Whatever is asked for is needed, so its marker says nothing more.
        return text if self.parsed or not self.has_marker else "%s ; %s" % (text, self.marker.strip())


def packaging():
    """The library that reads versions and markers: of the image, or in the pip that the image may have."""
    for name in ("packaging", "pip._vendor.packaging"):
        try:
            library = __import__(name, fromlist=["requirements"])
            __import__(name + ".requirements")
        except ImportError:
            continue
        return library
    return None


def _elsewhere(text):
    """The reason why a text asks for something else than a package of the index, if it does."""
    before_marker = text.split(";")[0].strip()
    lower = before_marker.lower()
    if re.match(r"(git|hg|svn|bzr)\+", lower) or re.search(r"@\s*(git|hg|svn|bzr)\+", lower):
        return "is the address of a repository, and a sandbox has no network"
    if "://" in lower or lower.startswith("file:"):
        return "is an address, and a sandbox has no network"
    is_path = before_marker.startswith((".", "/", "~")) or os.sep in before_marker or lower.endswith(_ARCHIVES)
    if is_path:
        return "is a path (import modules of the workspace from there, or set PYTHONPATH to their folder)"
    if "@" in before_marker:
        return "says where a package is"
    return None


def read_file(path, constraints, deep=0, seen=()):
    """Reads a file of requirements. Those of its constraints are added to ``constraints``."""
    path = os.path.normpath(path)
    if deep > _DEEPEST or path in seen:
        raise NotPossible("%s recursively references itself or is nested more than %d times" % (clean(path), _DEEPEST))
    if "://" in path or re.match(r"https?:", path):
        raise NotPossible("%s is an address, and a sandbox has no network: send the file along" % clean(path))
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            content = file.read(_LONGEST_FILE + 1)
    except OSError as error:
        raise NotPossible("Could not open requirements file: [Errno %s] %s: %r" % (error.errno, error.strerror, path)) from None
    if len(content) > _LONGEST_FILE:
        raise NotPossible("%s has more than %d characters" % (clean(path), _LONGEST_FILE))
    found = []
    for number, line in _lines(content):
        try:
            _read_line(line, path, found, constraints, deep, (*seen, path))
        except NotPossible as error:
            if error.is_placed:
                raise
            raise NotPossible("%s (line %d of %s)" % (error, number, clean(path)), is_placed=True) from None
    return found


def _lines(content):
    """The lines of a file without comments, joined where one goes on in the next, with the number of the first."""
    joined, began = "", 0
    for number, line in enumerate(content.splitlines(), 1):
        began = began if joined else number
        is_comment = line.lstrip().startswith("#")
        if line.endswith("\\") and not is_comment:
            joined += line[:-1]
            continue
        line = _COMMENT.sub("", joined + ("" if is_comment else line)).strip()
        joined = ""
        if line:
            yield began, _VARIABLE.sub(lambda found: os.environ.get(found[1]) or found[0], line)
    joined = _COMMENT.sub("", joined).strip()
    if joined:
        yield began, joined


def _read_line(line, path, found, constraints, deep, seen):
    if not line.startswith("-"):
        text, _, options = re.sub(r"\s+(--[a-z])", "\0\\1", line).partition("\0")
        if options:
            raise NotPossible(refusal_of_option(options.split("=")[0].split()[0]) or "Invalid requirement: %r" % cut(line))
        found.append(Requirement(text))
        return
    matched = re.match(r"(--[a-z-]+|-[a-zA-Z])[ =]*(.*)$", line, re.S)
    option, value = matched.groups() if matched else (line, "")
    inner = os.path.join(os.path.dirname(path), value.strip("\"'"))
    if option in ("-r", "--requirement") and value:
        found += read_file(inner, constraints, deep + 1, seen)
    elif option in ("-c", "--constraint") and value:
        constraints += read_file(inner, constraints, deep + 1, seen)
    elif option not in _WITHOUT_EFFECT:
        raise NotPossible(refusal_of_option(option) or "no such option: %s" % clean(cut(option)))
