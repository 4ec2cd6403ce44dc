"""Completes names at a prompt, without running anything of the client: no properties, no `__getattr__`, no `__dir__`."""

import builtins
import sys
from itertools import islice
from keyword import kwlist
from posix import scandir

_MOST_NAMES, _MOST_LOOKED_AT, _MOST_PARTS, _MOST_FOLDERS = 200, 100_000, 20, 40
# In bytes. The runner takes no answer with a longer one.
_LONGEST_NAME = 200
_ABSENT = object()
_re = library("re")
_STANDARD_MODULES = getattr(sys, "stdlib_module_names", ())
_STANDARD_MODULES = _STANDARD_MODULES if type(_STANDARD_MODULES) is frozenset else ()
_Module = type(sys)
# Called on a class, these can't be overridden by its metaclass.
_mro, _dict_of_class = type.__dict__["__mro__"].__get__, type.__dict__["__dict__"].__get__
# A class has one of these for the dictionary of its instances.
_GetSet = type(type.__dict__["__dict__"])


def complete(session, text, magics):
    """Returns where the word at the end of a text begins, and the names that it may become. `magics` are the names of IPython's
    magics, of lines and of cells."""
    line = text[text.rfind("\n") + 1 :]
    magic = _re.search(r"(?:^|=)\s*(%%?)(\w*)$", line)
    if magic:
        return len(text) - len(magic[2]), _fitting(magics[len(magic[1]) - 1], magic[2])
    quoted = _quoted(line)
    if quoted is not None:
        return _of_quoted(session, text, line, quoted)
    command = _re.match(r"\s*(?:\w+\s*=\s*)?[!%].*?([^\s=]*)$", line)
    if command:
        return _files(text, command[1])
    word = _re.search(r"[\w.]*$", line)[0]
    *parts, last = word.split(".")
    start = len(text) - len(last)
    imported = _re.match(r"\s*(?:from\s+([\w.]+)\s+import\s+(?:[\w,\s]*,\s*)?\w*|(?:import|from)\s+[\w.]*)$", line)
    if imported and imported[1] is None:
        return start, _fitting(_modules(parts), last)
    if imported:
        return start, _fitting(_names(_loaded().get(imported[1], _ABSENT)), last)
    if not parts:
        return start, _fitting([*session.space, *vars(builtins), *kwlist], last)
    if len(parts) > _MOST_PARTS or not all(part.isidentifier() for part in parts):
        # A number, or an attribute of something that would have to be evaluated.
        return start, []
    return start, _fitting(_names(_value(session, parts)), last)


def _value(session, parts):
    """The value of a name and attributes, if nothing has to run for it."""
    value = session.space.get(parts[0], vars(builtins).get(parts[0], _ABSENT))
    for part in parts[1:]:
        value = _attribute(value, part)
    return value


def _fitting(names, start):
    """The names that begin like this. Those with an underscore are left out if it does not begin with one."""
    found = set()
    for name in islice(names, _MOST_LOOKED_AT):
        if type(name) is str and name.startswith(start) and _is_short(name) and (start or name[:1] != "_"):
            found.add(name)
    return sorted(filter(str.isidentifier, found))[:_MOST_NAMES]


def _is_short(name):
    return len(name) <= _LONGEST_NAME and len(name.encode(errors="replace")) <= _LONGEST_NAME


def _quoted(line):
    """Where the text of a string begins that is open at the end of a line. None if there is no such string."""
    quote = start = None
    characters = iter(enumerate(line))
    for at, character in characters:
        if quote is None and character == "#":
            return None
        if quote and character == "\\":
            next(characters, None)
        elif character == quote:
            quote = None
        elif quote is None and character in "'\"":
            quote, start = character, at + 1
    return start if quote else None


def _of_quoted(session, text, line, start):
    """Completes a key of a dictionary, or else a path."""
    key = _re.search(r"([\w.]+)\[\w?$", line[: start - 1])
    value = _value(session, key[1].split(".")) if key else _ABSENT
    if type(value) is dict:
        word = line[start:]
        keys = (name for name in islice(list(value), _MOST_LOOKED_AT) if type(name) is str)
        return len(text) - len(word), _sorted(name for name in keys if name.startswith(word))
    return _files(text, line[start:])


def _files(text, path):
    """The files whose path begins like this, with a slash after folders."""
    folder, last = path[: path.rfind("/") + 1], path[path.rfind("/") + 1 :]
    found = [
        entry.name + "/" * entry.is_dir()
        for entry in _entries(folder or ".")
        if entry.name.startswith(last) and (last or entry.name[:1] != ".")
    ]
    return len(text) - len(last), _sorted(found)


def _entries(folder):
    try:
        with scandir(folder) as entries:
            return list(islice(entries, _MOST_LOOKED_AT // 50))
    except (OSError, ValueError):
        return []


def _sorted(names):
    return sorted(name for name in names if _is_short(name) and name.isprintable())[:_MOST_NAMES]


def _loaded():
    """The modules that were imported, unless the client has put something else in their place, which would run."""
    return sys.modules if type(sys.modules) is dict else {}


def _modules(parts):
    """The names of modules in a package, or of all that are not in one: those that were imported, and those in the folders of
    `sys.path`."""
    inside = "/".join(["", *parts, ""])
    path = sys.path if type(sys.path) is list else []
    folders = [folder for folder in path[:_MOST_FOLDERS] if type(folder) is str]
    files = (entry.name for folder in folders for entry in _entries((folder or ".") + inside))
    found = [name.partition(".")[0] for name in files if "." not in name or name.endswith((".py", ".so"))]
    loaded = [name for name in list(_loaded()) if type(name) is str]
    if parts:
        package = ".".join(parts) + "."
        return [*found, *(name[len(package) :] for name in loaded if name.startswith(package))]
    return [*found, *(name.partition(".")[0] for name in loaded), *_STANDARD_MODULES]


def _spaces(value):
    """The dictionaries that have the attributes of a value: first its own, then those of its classes."""
    kind = type(value)
    kinds = _mro(kind)
    if issubclass(kind, type):
        return [_dict_of_class(one) for one in _mro(value)]
    own = next((space["__dict__"] for space in map(_dict_of_class, kinds) if "__dict__" in space), None)
    spaces = [_dict_of_class(one) for one in kinds]
    if type(own) is _GetSet or _Module in kinds:
        inner = own.__get__(value)
        # The methods of another class would run.
        if type(inner) is dict:
            return [inner] if _Module in kinds else [inner, *spaces]
    return spaces


def _names(value):
    if value is _ABSENT:
        return []
    return [name for space in _spaces(value) for name in islice(list(space), _MOST_LOOKED_AT)]


def _attribute(value, name):
    """The value of an attribute, if nothing has to run for it."""
    if value is _ABSENT:
        return _ABSENT
    for at, space in enumerate(_spaces(value)):
        if name in space:
            found = space[name]
            is_own = at == 0 and not issubclass(type(value), type) and type(space) is dict
            # What a class has may be a descriptor, which would run.
            return found if is_own or not any("__get__" in _dict_of_class(one) for one in _mro(type(found))) else _ABSENT
    return _ABSENT
