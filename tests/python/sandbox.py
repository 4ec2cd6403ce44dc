"""A sandbox as either engine reports it."""

from typing import NamedTuple


class Sandbox(NamedTuple):
    id: str
    # "running", "paused", or something else.
    state: str
    # Digest of its image.
    image: str
