# The program that runs a module of CPython's tests in a sandbox. suites.py puts in which, and what is imported first.
import base64
import io
import json
import sys
import unittest
import zlib
from contextlib import redirect_stderr, redirect_stdout
import IMPORTED
from test import support

is_loaded = "pandas" in vars(sys)["modules"]
support.use_resources = {}


class Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.ends = {}

    def note(self, test, end):
        self.ends.setdefault(test.id(), []).append(end)

    def addSuccess(self, test):
        self.note(test, "passed")

    def addExpectedFailure(self, test, error):
        self.note(test, "failed as expected")

    def addUnexpectedSuccess(self, test):
        self.note(test, "passed unexpectedly")

    def addSkip(self, test, reason):
        self.note(test, f"skipped: {reason}")

    def addError(self, test, error):
        self.note(test, f"error: {error[0].__name__}: {str(error[1])[:200]}")

    def addFailure(self, test, error):
        self.note(test, f"failure: {str(error[1])[:200]}")

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.note(subtest, f"failure: {str(error[1])[:200]}")


result = Result()
with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
    unittest.defaultTestLoader.loadTestsFromName("test.TESTED").run(result)
# A result shows the first 32 KB of an output.
said = json.dumps({"is_loaded": is_loaded, "ends": result.ends}).encode()
print("\nends: " + base64.b64encode(zlib.compress(said, 9)).decode())
