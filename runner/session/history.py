"""History of the session, in memory: IPython keeps its own in a database, for which it starts a thread."""

_HistoryManager = library("IPython.core.history").HistoryManager
_fnmatch = library("fnmatch").fnmatchcase


# `%config` knows it by IPython's name.
class HistoryManager(_HistoryManager):
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
