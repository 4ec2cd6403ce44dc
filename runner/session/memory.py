"""What IPython keeps on a disk, and a session only in memory: the history of cells, and what `%store` and `%bookmark` keep."""

import sys

_HistoryManager = library("IPython.core.history").HistoryManager
_fnmatch = library("fnmatch").fnmatchcase
_Weights = load("weights")["Weights"]
# Of the texts of all cells, as they were sent and as IPython has made Python of them.
_MOST_BYTES = 16 << 20


# `%config` knows it by IPython's name.
class HistoryManager(_HistoryManager):
    """The cells of the session, and the values that they have shown."""

    # Without the checks that traits make each time.
    _i00 = _i = _ii = _iii = ""

    def __init__(self, *arguments, **options):
        self._weights = _Weights(_MOST_BYTES)
        super().__init__(*arguments, **options)

    def store_inputs(self, line_num, source, source_raw=None):
        super().store_inputs(line_num, source, source_raw)
        self._weigh(line_num)
        # There is no database that would take it.
        self.db_input_cache.clear()

    def _weigh(self, number):
        """Empties the oldest cells if there is too much text."""
        inputs = [self.input_hist_raw, self.input_hist_parsed]
        for old in self._weights.add(number, sum(sys.getsizeof(cells[number]) for cells in inputs if number < len(cells))):
            for cells in inputs:
                cells[old] = ""
            for space in [self.shell.user_ns, self.shell.user_ns_hidden]:
                space.pop("_i%d" % old, None)

    def _lines(self, raw, output):
        """The cells of the session: the number of the session, that of the cell, and its code."""
        inputs = self.input_hist_raw if raw else self.input_hist_parsed
        return [line for line in self._get_range_session(1, None, raw, output) if inputs[line[1]]]

    def get_tail(self, n=10, raw=True, output=False, include_latest=False):
        lines = self._lines(raw, output)
        end = len(lines) if include_latest else max(len(lines) - 1, 0)
        return lines[max(end - (10 if n is None else n), 0) : end]

    def search(self, pattern="*", raw=True, search_raw=True, output=False, n=None, unique=False):
        inputs = self.input_hist_raw if search_raw else self.input_hist_parsed
        lines = [line for line in self._lines(raw, output) if _fnmatch(inputs[line[1]], pattern)]
        if unique:
            # The last of those that are alike.
            lines = sorted({inputs[line[1]]: line for line in lines}.values(), key=lambda line: line[1])
        return lines if n is None else lines[max(len(lines) - n, 0) :]

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
        for number in range(len(self.input_hist_raw)):
            self._weigh(number)


class Store:
    """A dictionary that keeps values as they were when they were put in. Keys can look like paths."""

    def __init__(self):
        self._kept = {}

    def __getitem__(self, key):
        return library("pickle").loads(self._kept[str(key)])

    def __setitem__(self, key, value):
        self._kept[str(key)] = library("pickle").dumps(value)

    def __delitem__(self, key):
        # IPython's own forgives a key that is not there.
        self._kept.pop(str(key), None)

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
