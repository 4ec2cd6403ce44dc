"""Says whether the program on standard input is valid Python. Nothing of it runs."""

import sys
import warnings

try:
    # What json writes texts with. The rest of json takes longer to import than most programs to check.
    from _json import encode_basestring_ascii as text
except ImportError:
    from json import dumps as text


def problem(code):
    """The message, line and offset of the first error; None if there is none."""
    try:
        # Python looks for the line in a file of this name, which must not be there.
        compile(code, "<code>", "exec", dont_inherit=True)
    except SyntaxError as error:
        message, line, offset = error.msg, error.lineno, error.offset
    except (ValueError, MemoryError, RecursionError, OverflowError) as error:
        # The same would end the program before it begins.
        message, line, offset = ("%s: %s" % (type(error).__name__, error)).rstrip(": "), None, None
    else:
        return None
    nul = code.find(b"\0")
    if not line and nul >= 0:
        line, offset = code.count(b"\n", 0, nul) + 1, nul - code.rfind(b"\n", 0, nul)
    return message, line, offset


def answer(found):
    if found is None:
        return '{"valid":true}'
    message, line, offset = found
    message = str(message).encode("utf-8", "replace").decode()
    fields = ['"valid":false', '"error":' + text(message)]
    if line and line > 0:
        fields.append('"line":%d' % line)
        if offset and offset > 0:
            fields.append('"offset":%d' % offset)
    return "{%s}" % ",".join(fields)


warnings.simplefilter("ignore")
sys.stdout.write(answer(problem(sys.stdin.buffer.read())))
