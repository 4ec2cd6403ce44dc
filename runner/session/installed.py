"""Packages that the sandbox was given since the kernel began.

Modules are found without this, in the folder that the image's `isolator.pth` has put into the path. Here come the files of packages that
Python reads when it starts, and what children of the kernel need in images that have no such file.
"""

import sys

_LATE, _OWN = "/dev/shm/.isolator-packages", "/.isolator/packages"


def adopt():
    """Makes the interpreter one that was started with the packages."""
    os, site = library("os"), library("site")
    base = _LATE if os.path.islink(_LATE) else _OWN
    place = "%s/lib/python%d.%d/site-packages" % (base, *sys.version_info[:2])
    if not os.path.isdir(place):
        return
    os.environ["PYTHONUSERBASE"] = base
    site.USER_BASE, site.USER_SITE = base, place
    first = (at for at, path in enumerate(sys.path) if path == place or path.endswith("-packages"))
    at = next(first, len(sys.path))
    before, behind = set(sys.path), sys.path[at:]
    del sys.path[at:]
    try:
        library("importlib").invalidate_caches()
        site.addsitedir(place, {site.makepath(path)[1] for path in sys.path})
    finally:
        sys.path.extend(path for path in behind if path not in sys.path)
    load("imports")["finder"].add_places([path for path in sys.path if path not in before])
