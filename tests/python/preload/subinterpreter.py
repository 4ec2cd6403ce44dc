import _interpreters

one = _interpreters.create()
print(_interpreters.run_string(one, "import sys, os; print(sys.path, sys.argv, 'PYTHONPATH' in os.environ, list(sys.modules))"))
_interpreters.destroy(one)
