"""Compiles the cells of a session, and remembers their lines for tracebacks and for `inspect`."""

import sys
from gc import disable as _gc_disable, enable as _gc_enable, isenabled as _gc_is_enabled

_interactive, _linecache = library("IPython.core.interactiveshell"), library("linecache")
_crc32 = library("zlib").crc32
_Weights = load("weights")["Weights"]
_ALLOW_INCOMPLETE = 0x4000
# The changes of `from __future__ import` last for later cells.
_FUTURES = library("IPython.core.compilerop").PyCF_MASK
# Of the lines of all cells, with what Python needs for each.
_MOST_BYTES = 16 << 20


class Compiler(_interactive.CachingCompiler):
    """Compiles cells. It remembers what it could not compile, which is an error of the client's, and the lines of all cells."""

    def __init__(self):
        super().__init__()
        self.refused = self._last = None
        # What Python says of input that does not end says less, if more could come.
        self.flags &= ~_ALLOW_INCOMPLETE
        # What the cache of lines has of each cell.
        self._entries, self._weights = {}, _Weights(_MOST_BYTES)

    def ast_parse(self, *arguments, **options):
        # A tree is many objects. They must not make the collector look at all that the client has.
        was_enabled = _gc_is_enabled()
        _gc_disable()
        try:
            return super().ast_parse(*arguments, **options)
        except BaseException as error:
            self.refused = error
            raise
        finally:
            if was_enabled:
                _gc_enable()

    def __call__(self, source, filename, symbol, **options):
        try:
            if options:
                return super().__call__(source, filename, symbol, **options)
            # The same, without a look at each change of `from __future__`.
            code = compile(source, filename, symbol, self.flags, True)
        except BaseException as error:
            self.refused = error
            raise
        self.flags |= code.co_flags & _FUTURES
        return code

    def extra_flags(self, flags):
        return _Flags(self, flags & ~self.flags)

    def get_code_name(self, raw_code, transformed_code, number):
        # In the form of IPython's names, which libraries know. Its digest takes a library that most sessions don't need.
        return "<ipython-input-%d-%012x>" % (number, _crc32(transformed_code.encode(errors="replace")))

    def cache(self, *arguments, **options):
        self.register_lines()
        self._last = name = super().cache(*arguments, **options)
        entry = self._entries[name] = _linecache.cache[name]
        for old in self._weights.add(name, sum(map(sys.getsizeof, entry[2]))):
            self._forget(old)
        return name

    def forget_last(self):
        self._weights.remove(self._last)
        self._forget(self._last)
        self._last = next(reversed(self._entries), None)

    def _forget(self, name):
        _linecache.cache.pop(name, None)
        self._entries.pop(name, None)
        self._filename_map.pop(name, None)

    def register_lines(self):
        """Makes the lines of cells known to whatever prints or inspects them. The client may have emptied that."""
        if not isinstance(_linecache.cache, dict):
            _linecache.cache = {}
        if self._last is not None and self._last not in _linecache.cache:
            _linecache.cache.update(self._entries)


class _Flags:
    """Flags that a compiler has for a moment. IPython's own way takes four functions more, and a fork copies the memory of each."""

    def __init__(self, compiler, flags):
        self._compiler, self._flags = compiler, flags

    def __enter__(self):
        self._compiler.flags |= self._flags

    def __exit__(self, *_):
        self._compiler.flags &= ~self._flags
