#: {"files": {"helper.py": "from pack import inner\nx = inner.y", "pack/__init__.py": "print('pack', __path__, __file__)",
#:  "pack/inner.py": "from . import other\nfrom .sub import deep\ny = other.z + deep.z", "pack/other.py": "z = 1",
#:  "pack/sub/__init__.py": "", "pack/sub/deep.py": "import inspect\nz = 2\ndef where(): return inspect.stack()[1].filename",
#:  "space/part.py": "part = __package__", "data/values.csv": "a,b\n1,2\n", "pack/data.txt": "inside"}}
import importlib.resources
import os
import sys

import helper
import pack.sub.deep
from pack.sub import deep
import space.part

print(helper.x, deep.where(), space.part.part, space)
print(open("data/values.csv").read(), importlib.resources.files("pack").joinpath("data.txt").read_text())
print([name for name in sys.modules if name.split(".")[0] in ("helper", "pack", "space")])
for folder, folders, files in sorted(os.walk(".")):
    print(folder, sorted(folders), sorted(files))
print(sys.path_importer_cache["/workspace"], pack.__spec__, pack.__cached__)
