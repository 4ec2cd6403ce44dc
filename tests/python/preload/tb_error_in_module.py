#: {"status": "error", "files": {"tools/__init__.py": "", "tools/calc.py": "def div(a, b):\n    return (a +\n            1) / b\n"}}
from tools import calc


class Job:
    def run(self):
        return [calc.div(n, n) for n in range(2, -1, -1)]


Job().run()
