#: {"status": "error"}
import os

os.abort()
