"""What IPython keeps on a disk, and a session only in memory: the history of cells, and what `%store` and `%bookmark` keep."""

_HistoryManager = library("IPython.core.history").HistoryManager
_fnmatch = library("fnmatch").fnmatchcase


class History(_HistoryManager):
    """The cells of the session, and the values that they have shown."""

    # Without the checks that traits make each time.
    _i00 = _i = _ii = _iii = ""

    def store_inputs(self, line_num, source, source_raw=None):
        super().store_inputs(line_num, source, source_raw)
        # There is no database that would take it.
        self.db_input_cache.clear()

    def pad(self, number):
        """Makes the next cell the one with this number. Cells without Python, such as commands, count too."""
        for inputs in [self.input_hist_parsed, self.input_hist_raw]:
            if len(inputs) < number:
                inputs += [""] * (number - len(inputs))

    def take_over(self, other):
        """Takes over what another history has."""
        for name in ["input_hist_parsed", "input_hist_raw"]:
            getattr(self, name)[:] = getattr(other, name)
        self.output_hist.update(other.output_hist)


class Store:
    """A dictionary that keeps values as they were when they were put in. Keys can look like paths."""

    def __init__(self):
        self._kept = {}

    def __getitem__(self, key):
        return library("pickle").loads(self._kept[str(key)])

    def __setitem__(self, key, value):
        self._kept[str(key)] = library("pickle").dumps(value)

    def __delitem__(self, key):
        del self._kept[str(key)]

    def __contains__(self, key):
        return str(key) in self._kept

    def __len__(self):
        return len(self._kept)

    def __iter__(self):
        return iter(self.keys())

    def get(self, key, default=None):
        return self[key] if key in self else default

    def keys(self, pattern="*"):
        return [key for key in self._kept if _fnmatch(key, pattern)]
