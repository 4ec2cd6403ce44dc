#: {"stdin": "first\nsecond\r\nthird ü\n\nlast without end"}
import sys

print(repr(input("name? ")))
for line in sys.stdin:
    print(repr(line))
try:
    input()
except EOFError as error:
    print(error)
