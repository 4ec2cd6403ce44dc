#: {"status": "error"}
# What stands before an import can refuse it.
import sys


class Blocker:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "pandas":
            raise ImportError(f"{name} is blocked")


sys.meta_path.insert(0, Blocker())
import pandas
