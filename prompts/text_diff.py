"""Compare two text files.

Usage: text_diff [--ignore-space] [--ignore-case] [--context N] OLD NEW
Either OLD or NEW may be - for standard input.
"""
import argparse, codecs, difflib, sys

# Bytes that are not valid UTF-8 are shown as Windows or Latin-1 text rather than refused.
codecs.register_error("legacy", lambda e: (e.object[e.start:e.end].decode("cp1252", "replace"), e.end))


class Matcher(difflib.SequenceMatcher):
    """Match only the part between the common first and last lines, because matching is quadratic."""

    def __init__(self, old, new):
        shortest = min(len(old), len(new))
        self.head = next((i for i in range(shortest) if old[i] != new[i]), shortest)
        rest = shortest - self.head
        self.tail = next((i for i in range(rest) if old[-1 - i] != new[-1 - i]), rest)
        self.sizes = len(old), len(new)
        super().__init__(None, old[self.head:len(old) - self.tail], new[self.head:len(new) - self.tail])

    def get_opcodes(self):
        h, t, (m, n) = self.head, self.tail, self.sizes
        codes = [("equal", 0, h, 0, h)] if h else []
        codes += [(tag, a + h, b + h, c + h, d + h) for tag, a, b, c, d in super().get_opcodes()]
        return codes + ([("equal", m - t, m, n - t, n)] if t else [])


def read(path):
    try:
        data = sys.stdin.buffer.read() if path == "-" else open(path, "rb").read()
    except OSError as error:
        parser.error(f"cannot read {path}: {error.strerror}")
    codec = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    # Only newlines end a line here; str.splitlines would also break at form feeds and others.
    lines = data.decode(codec, "legacy").split("\n")
    if lines[-1]:
        lines[-1] += "\n\\ No newline at end of file"  # Kept in the line, so that the difference shows.
        return lines
    return lines[:-1]


def key(line):
    line = " ".join(line.split()) if args.ignore_space else line
    return line.casefold() if args.ignore_case else line


def span(start, stop):
    return f"{start + (stop > start)},{stop - start}"


parser = argparse.ArgumentParser(prog="text_diff", description=__doc__.splitlines()[0])
parser.add_argument("old")
parser.add_argument("new")
parser.add_argument("--ignore-space", action="store_true", help="treat any run of blanks as one space")
parser.add_argument("--ignore-case", action="store_true")
parser.add_argument("--context", type=int, default=3, metavar="N", help="unchanged lines shown around a change")
args = parser.parse_args()
if args.old == args.new == "-":
    parser.error("only one of OLD and NEW can be standard input")
if args.context < 0:
    parser.error("--context cannot be negative")
old, new = read(args.old), read(args.new)
added = removed = 0
output = [f"--- {args.old}", f"+++ {args.new}"]
for group in Matcher([key(line) for line in old], [key(line) for line in new]).get_grouped_opcodes(args.context):
    output.append(f"@@ -{span(group[0][1], group[-1][2])} +{span(group[0][3], group[-1][4])} @@")
    for tag, a, b, c, d in group:
        if tag == "equal":
            output += [" " + line for line in new[c:d]]
            continue
        output += ["-" + line for line in old[a:b]] + ["+" + line for line in new[c:d]]
        removed, added = removed + b - a, added + d - c
if added or removed:
    # A carriage return is made visible, since it is often the whole difference.
    print("\n".join(line.replace("\r", "\\r") for line in output))
print(f"{added} added, {removed} removed" if added or removed else "no differences")
