import py_compile
import shutil
import sys
import zipfile

with zipfile.ZipFile("lib.zip", "w") as archive:
    archive.writestr("zipped.py", "import pkgutil\nx = __file__, __loader__.archive\n")
    archive.writestr("__main__.py", "import sys; print(sys.argv, __name__)")
sys.path.insert(0, "lib.zip")
import zipped

print(zipped.x)
open("source.py", "w").write("x = 5\n")
py_compile.compile("source.py", "compiled.pyc")
sys.path[0] = ""
import compiled

print(compiled.x, compiled.__file__, compiled.__cached__, compiled.__loader__.__class__)
import subprocess

print(subprocess.run([sys.executable, "lib.zip", "a"], capture_output=True, text=True))
