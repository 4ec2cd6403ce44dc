#: {"status": "error", "files": {"broken.py": "x = 1\ny = = 2\n"}}
import broken
