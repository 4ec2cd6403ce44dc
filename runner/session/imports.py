"""Finds modules. What is installed gets what is installed: no file of the workspace replaces a module that IPython, the kernel, the
standard library or a package of the image imports. A cell, and the files that it imports, find modules as in any program. When they have
imported a file with the name of a standard module, there is one module of this name for all, and what the file lacks is there for those
that are installed.

An installed module that imports by a name that it was given, such as `unittest` or `pickle`, does that for the cell.
"""

import sys
from posix import getcwd

from _frozen_importlib import BuiltinImporter, FrozenImporter
from _frozen_importlib_external import PathFinder

_IMPORTLIB, _FROZEN = "<frozen importlib", "<frozen "
_INCLUDED = {"built-in", "frozen"}
_STANDARD = getattr(sys, "stdlib_module_names", ())


def _places():
    """Folders of installed modules."""
    try:
        workspace = getcwd()
    except OSError:
        workspace = ""
    return [place for place in sys.path if place not in ("", ".", workspace, folder)]


def _importer(frame):
    """The file of the code that imports something, and its instruction. `frame` is that of the machinery of imports."""
    while frame is not None and frame.f_code.co_filename.startswith(_IMPORTLIB):
        frame = frame.f_back
    return ("", None) if frame is None else (frame.f_code.co_filename, frame.f_code.co_code[frame.f_lasti])


class _Probe:
    """Finds nothing, and learns by which instruction a statement imports."""

    def find_spec(self, name, path=None, target=None):
        self.instruction = _importer(sys._getframe(1))[1]


def _instruction_of_imports():
    probe = _Probe()
    sys.meta_path.insert(0, probe)
    try:
        exec("import isolator_no_such_module")
    except ImportError:
        return probe.instruction
    finally:
        sys.meta_path.remove(probe)


class Finder:
    """Finds modules for what is installed, and has modules fitted to the session when they are imported."""

    def __init__(self):
        self._places = _places()
        self._starts = (*(place + "/" for place in self._places), _FROZEN)
        self._finders, self._hooks = [self, *sys.meta_path], list(sys.path_hooks)
        # Functions that are called with a module, by its name.
        self._fits = {}

    def fit(self, name, fit):
        """Has a function called with a module as soon as it is imported."""
        if name in sys.modules:
            fit(sys.modules[name])
        else:
            self._fits[name] = fit

    def put_back(self):
        """Takes its place among the finders again, if a cell has removed it. Without any finder, no cell could import anything."""
        finders = sys.meta_path
        if not isinstance(finders, list) or not finders:
            sys.meta_path = list(self._finders)
        elif self not in finders:
            finders.insert(0, self)
        for name, usual in [("path", ["", *self._places]), ("path_hooks", self._hooks), ("path_importer_cache", {})]:
            if not isinstance(getattr(sys, name, None), type(usual)):
                setattr(sys, name, usual.copy())

    def is_installed(self, module):
        return self._has_installed(getattr(module, "__spec__", None))

    def _has_installed(self, spec):
        origin = getattr(spec, "origin", None)
        return isinstance(origin, str) and (origin in _INCLUDED or origin.startswith(self._starts))

    def is_code_of_installed(self, frame):
        return frame.f_code.co_filename.startswith(self._starts)

    def find_spec(self, name, path=None, target=None):
        spec = None
        if path is None and self._is_for_installed(sys._getframe(1)):
            spec = self._find_installed(name)
        elif path is None and name in _STANDARD:
            spec = self._find_elsewhere(name, path, target)
            if spec is not None and not self._has_installed(spec):
                _have_stand_in(spec)
                return spec
        if name in self._fits:
            spec = spec or self._find_elsewhere(name, path, target)
            self._fit_when_loaded(spec)
        return spec

    def _is_for_installed(self, frame):
        """Whether an installed module imports something for itself."""
        file, instruction = _importer(frame)
        if file.startswith(folder + "/"):
            return True
        return file.startswith(self._starts) and instruction == _IMPORT

    def _find_installed(self, name):
        is_standard = name in _STANDARD
        if is_standard and (BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name)):
            return None
        spec = PathFinder.find_spec(name, self._places)
        if spec is None and is_standard:
            # One of another system, which is asked for because it may be there.
            raise ModuleNotFoundError("No module named %r" % name, name=name)
        # A package of several folders has no loader. Some of them may be elsewhere.
        return None if spec is None or spec.loader is None else spec

    def _find_elsewhere(self, name, path, target):
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        return next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)

    def _fit_when_loaded(self, spec):
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module):
            del loader.exec_module
            execute(module)
            fit = self._fits.pop(spec.name, None)
            if fit is not None:
                fit(module)

        loader.exec_module = exec_module


class _StandIn(type(sys)):
    """A module of the workspace with the name of one of the standard library. Installed modules find there what they look for."""

    def __getattr__(self, name):
        if finder.is_code_of_installed(sys._getframe(1)) and not name.startswith("__"):
            return getattr(library(self.__name__), name)
        # The same error as without this class.
        return type(sys).__getattribute__(self, name)


def _have_stand_in(spec):
    """Has the module that is made for a file be a stand-in."""
    loader = spec.loader
    make = getattr(loader, "create_module", None)
    if make is None:
        return

    def create_module(spec):
        del loader.create_module
        module = make(spec)
        return _StandIn(spec.name) if module is None else module

    loader.create_module = create_module


def library(name, modules=sys.modules, load=__import__):
    """Returns an installed module, which no file of the workspace replaces, also if a cell has imported that."""
    module = modules.get(name)
    if module is None or module is not _known.get(name):
        top = name.partition(".")[0]
        if top in modules and not finder.is_installed(modules[top]):
            module = _load_behind(name, top, modules, load)
        else:
            load(name)
            module = modules[name]
        _known[name] = module
    return module


def _load_behind(name, top, modules, load):
    """Loads a module whose name another one has."""
    hidden = {one: modules.pop(one) for one in list(modules) if one == top or one.startswith(top + ".")}
    try:
        load(name)
        return modules[name]
    finally:
        for one in [one for one in list(modules) if one == top or one.startswith(top + ".")]:
            del modules[one]
        modules.update(hidden)


_IMPORT = _instruction_of_imports()
finder, _known = Finder(), {}
finder.put_back()
