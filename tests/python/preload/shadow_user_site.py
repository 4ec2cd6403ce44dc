#: {"files": {"sitecustomize.py": "print('never')", "usercustomize.py": "print('nor this')", "site.py": "x = 1",
#:  "os.py": "x = 2", "encodings.py": "x = 3", "__init__.py": "print('not this')", "__main__.py": "print('nor that')",
#:  "a.pth": "import sys; print('pth')", "main.pyc": "no", "pyvenv.cfg": "home = /nowhere"}}
import encodings
import os
import site
import sys

print(os.__file__, site.__file__, encodings.__file__)
print("sitecustomize" in sys.modules, sys.modules["sitecustomize"].__file__, "usercustomize" in sys.modules)
