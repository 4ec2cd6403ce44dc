"""Where the pictures go that a program shows: into the working directory, from where they come back."""

import os
from itertools import count
from pathlib import Path

# They are looked for where programs begin, wherever this one has gone meanwhile.
_FOLDER = Path("/workspace" if os.access("/workspace", os.W_OK) else "").absolute()


def new_file():
    """Makes the next file, and never in place of a picture that the program has drawn or was given."""
    for number in count(1):
        path = _FOLDER / f"figure_{number}.png"
        try:
            path.touch(exist_ok=False)
            return path
        except FileExistsError:
            pass
