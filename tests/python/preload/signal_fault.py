#: {"status": "error"}
import ctypes

print("before")
ctypes.string_at(0)
