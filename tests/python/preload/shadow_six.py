#: {"files": {"six.py": "x = 'mine'\n"}, "status": "success"}
import six

print(six.x, six.__file__)
