"""Finds modules. What is installed gets what is installed: no file of the workspace replaces a module that IPython, the kernel, the
standard library or a package imports. A cell, and the files that it imports, find modules as in any program. When they have imported
a file with the name of a standard module, that is the module of this name for all, as in any program, too.

An installed module that imports by a name that it was given, such as `unittest` or `pickle`, does that for the cell.
"""

import sys
from posix import getcwd

from _frozen_importlib import BuiltinImporter, FrozenImporter
from _frozen_importlib_external import PathFinder

_IMPORTLIB, _FROZEN = "<frozen importlib", "<frozen "
_INCLUDED = {"built-in", "frozen"}
_STANDARD = getattr(sys, "stdlib_module_names", ())
# What of `sys` imports need, and of which kind it is.
_KINDS = (("path", list), ("path_hooks", list), ("path_importer_cache", dict))
_USUAL = (BuiltinImporter, FrozenImporter, PathFinder)


def _without_workspace(places):
    try:
        workspace = getcwd()
    except OSError:
        workspace = ""
    return [place for place in places if place not in ("", ".", workspace)]


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
        import isolator_no_such_module  # noqa: F401
    except ImportError:
        return probe.instruction
    finally:
        sys.meta_path.remove(probe)


class Finder:
    """Finds modules for what is installed, and has modules fitted to the session when they are imported."""

    def __init__(self):
        # Folders of installed modules.
        self._places, self._starts = [], ()
        self.add_places([place for place in _without_workspace(sys.path) if place != folder])
        self._finders, self._hooks = [self, *sys.meta_path], list(sys.path_hooks)
        # Functions that are called with a module, by its name.
        self._fits = {}

    def add_places(self, places):
        """Has modules in these folders be installed ones. They come before the packages of the image."""
        at = next((at for at, place in enumerate(self._places) if place.endswith("-packages")), len(self._places))
        self._places[at:at] = [place for place in places if place not in self._places]
        self._starts = (*(place + "/" for place in self._places), _FROZEN)

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
        for name, kind in _KINDS:
            if not isinstance(getattr(sys, name, None), kind):
                usual = {"path": ["", *self._places], "path_hooks": self._hooks, "path_importer_cache": {}}
                setattr(sys, name, kind(usual[name]))

    def is_installed(self, module):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        return isinstance(origin, str) and (origin in _INCLUDED or origin.startswith(self._starts))

    def find_spec(self, name, path=None, target=None):
        spec = None
        if path is None and self._is_for_installed(sys._getframe(1)):
            spec = self._find_installed(name)
        if name in self._fits:
            spec = spec or self._find_behind(name, path, target)
            self._fit_when_loaded(spec)
        return spec

    def _is_for_installed(self, frame):
        """Whether an installed module imports something for itself."""
        file, instruction = _importer(frame)
        if file.startswith(folder + "/"):
            return True
        return file.startswith(self._starts) and instruction == _IMPORT

    def _find_installed(self, name):
        if name not in _STANDARD:
            spec = PathFinder.find_spec(name, _without_workspace(sys.path))
            # A package of several folders has no loader. Some of them may be elsewhere.
            return None if spec is None or spec.loader is None else spec
        if BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
            return None
        # Another finder can have a reason: setuptools has its own `distutils`.
        spec = self._find_behind(name, None, None, besides=_USUAL) or PathFinder.find_spec(name, self._places)
        if spec is None:
            # One of another system, which is asked for because it may be there.
            raise ModuleNotFoundError("No module named %r" % name, name=name)
        return spec

    def _find_behind(self, name, path, target, besides=()):
        """Asks the finders that come after this one. Those before it were asked, and may ask this one for what they find."""
        finders = list(sys.meta_path)
        at = finders.index(self) + 1 if self in finders else 0
        others = [finder for finder in finders[at:] if finder not in besides and hasattr(finder, "find_spec")]
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


def library(name, modules=sys.modules, load=__import__):
    """Returns an installed module, which no file of the workspace replaces, also if a cell has imported that."""
    module, known = modules.get(name), _known.get(name)
    if module is None or module is not known:
        top = modules.get(name.partition(".")[0])
        is_free = top is None or finder.is_installed(top)

        def loaded():
            load(name)
            return modules[name]

        _known[name] = module = (None if is_free else known) or behind_files(loaded)
    return module


def behind_files(load, modules=sys.modules):
    """Calls a function that imports, as if cells had imported no files with the names of standard modules."""
    tops = {name for name in _STANDARD if name in modules and not finder.is_installed(modules[name])}
    if not tops:
        return load()
    hidden = {name: modules.pop(name) for name in list(modules) if name.partition(".")[0] in tops}
    try:
        return load()
    finally:
        for name in [name for name in list(modules) if name.partition(".")[0] in tops]:
            del modules[name]
        modules.update(hidden)


_IMPORT = _instruction_of_imports()
finder, _known = Finder(), {}
finder.put_back()
