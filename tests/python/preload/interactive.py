#: {"stdin": "x = 20\nx + 1\n1/0\nimport sys; sys.exit(3)\n", "status": "error"}
import code

code.interact(banner="hello", local={"y": 1})
