#: {"files": {"numpy.py": "x = 'mine'\n"}, "status": "success"}
import numpy

print(numpy.x, numpy.__file__)
