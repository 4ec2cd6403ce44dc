"""A bound in bytes for texts that are kept in the order in which they came."""


class Weights:
    def __init__(self, most):
        self._most, self._all, self._weights = most, 0, {}

    def add(self, key, weight):
        """Notes a text. Returns the keys of those that have no more room, the oldest first. The newest always stays."""
        self.remove(key)
        self._weights[key] = weight
        self._all += weight
        leaving = []
        while self._all > self._most and len(self._weights) > 1:
            oldest = next(iter(self._weights))
            self.remove(oldest)
            leaving.append(oldest)
        return leaving

    def remove(self, key):
        self._all -= self._weights.pop(key, 0)
