#: {"stdin": "\u0000\u0001ü\r\n\u001a rest"}
import os
import sys

print(os.read(0, 3), sys.stdin.buffer.read(2), sys.stdin.buffer.peek()[:4], sys.stdin.read())
