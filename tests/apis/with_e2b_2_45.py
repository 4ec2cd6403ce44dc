"""The SDK for Python 2.45."""

from e2b import AsyncSandbox, Sandbox
from e2b_checks import CORE, main

main({"sync": Sandbox, "async": AsyncSandbox}, CORE, "e2b")
