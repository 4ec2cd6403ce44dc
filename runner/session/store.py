"""What `%store`, `%bookmark` and other magics of IPython keep: in memory, because a session's disk ends with the session."""

_pickle, _fnmatch = library("pickle"), library("fnmatch").fnmatchcase


class Store:
    """A dictionary that keeps values as they were when they were put in. Keys can look like paths."""

    def __init__(self):
        self._kept = {}

    def __getitem__(self, key):
        return _pickle.loads(self._kept[str(key)])

    def __setitem__(self, key, value):
        self._kept[str(key)] = _pickle.dumps(value)

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
