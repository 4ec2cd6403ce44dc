#: {"files": {"tool.py": "import sys\nprint(__name__, __file__, __spec__, sys.argv)\nx = 1\n", "pack/__main__.py": "print(__name__, __package__)\n"}}
import runpy
import sys

print(sorted(runpy.run_module("tool")))
runpy.run_module("tool", run_name="__main__", alter_sys=True)
runpy.run_path("tool.py", run_name="other")
runpy.run_path("pack")
runpy.run_module("pack")
if __name__ == "__main__":
    import main

    print(main is sys.modules["main"], main.__name__)
