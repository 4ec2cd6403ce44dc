"""How much of the suite runs.

The variable ISOLATOR_TEST_ALL=1 asks for every test in every combination, as before a release. Without it each
combination runs that can differ from the others.
"""

import os

EVERYTHING = os.environ.get("ISOLATOR_TEST_ALL") == "1"
