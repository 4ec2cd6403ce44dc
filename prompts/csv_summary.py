"""Summarise the columns of a CSV file.

Usage: csv_summary [--delimiter C] [--no-header] [FILE]
Without FILE the CSV is read from standard input.
"""
import argparse, array, codecs, collections, csv, functools, io, itertools, math, re, statistics, sys

INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
CODE = re.compile(r"0[0-9]+")  # A leading zero marks a code such as a postcode, which is no quantity.
DATE = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])([T ].*)?")
MISSING = {"", "na", "n/a", "nan", "null", "none", "-"}
DISTINCT_LIMIT = 50_000  # This bounds the memory spent on one column of a very long file.

# Bytes that are not valid UTF-8 are nearly always from a Windows or Latin-1 export.
codecs.register_error("legacy", lambda e: (e.object[e.start:e.end].decode("cp1252", "replace"), e.end))


def open_text(path):
    raw = open(path, "rb") if path else sys.stdin.buffer
    codec = "utf-16" if raw.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return io.TextIOWrapper(raw, encoding=codec, errors="legacy", newline="")

def delimiter_of(lines):
    """The delimiter with which most lines have the same number of cells, and more than one."""
    def alike(delimiter):
        widths = collections.Counter(len(row) for row in csv.reader(lines, delimiter=delimiter))
        return max((count for width, count in widths.items() if width > 1), default=0)

    best = max("\t;|,", key=alike)  # The comma comes last, because it is also in texts and numbers.
    return best if alike(best) else ","


def read_csv(text, delimiter, header=True):
    """Return the delimiter and the rows, without a line such as sep=; and without titles above the header."""
    lines = list(itertools.islice(text, 100))
    told = re.fullmatch(r'"?sep=(.)"?\s*', lines[0], re.IGNORECASE) if lines else None
    lines = lines[1:] if told else lines
    delimiter = delimiter or (told[1] if told else delimiter_of(lines))
    rows = (row for row in csv.reader(itertools.chain(lines, text), delimiter=delimiter) if row)
    first = list(itertools.islice(rows, 100))
    width = max(collections.Counter(map(len, first)).items(), key=lambda pair: pair[::-1], default=(0, 0))[0]

    def is_title(row, below):
        if not any(cell.strip(" +-.,0123456789") for cell in below):
            return False  # These are numbers, and no header.
        filled = max((i for i, cell in enumerate(row, 1) if cell.strip()), default=0)
        # Spreadsheets fill up titles with empty cells.
        return filled * 3 <= width or len(row) * 2 <= width or row[0].startswith("#") and len(row) != width

    while header and len(first) > 1 and is_title(*first[:2]):
        del first[0]
    return delimiter, itertools.chain(first, rows)


def one_character(text):
    if len(text := text.replace("\\t", "\t")) != 1:
        raise argparse.ArgumentTypeError("takes one character")
    return text


@functools.lru_cache(maxsize=1 << 16)
def classify(cell):
    if cell.lower() in MISSING:
        return "missing"
    if CODE.fullmatch(cell):
        return "code"
    if NUMBER.fullmatch(cell) and math.isfinite(float(cell)):
        return "integer" if INTEGER.fullmatch(cell) else "number"
    if cell.lower() in ("true", "false"):
        return "boolean"
    return "date" if DATE.fullmatch(cell) else "text"


class Column:
    def __init__(self, name):
        self.name, self.kinds, self.values = name, collections.Counter(), collections.Counter()
        self.numbers, self.overflow = array.array("d"), False

    def add(self, cell):
        cell = cell.strip()
        kind = classify(cell)
        self.kinds[kind] += 1
        if kind == "missing":
            return
        if kind in ("integer", "number"):
            self.numbers.append(float(cell))
        if len(self.values) < DISTINCT_LIMIT or cell in self.values:
            self.values[cell] += 1
        else:
            self.overflow = True

    def describe(self, rows):
        missing = self.kinds.pop("missing", 0)
        if self.kinds.keys() == {"integer", "number"}:
            self.kinds = {"number": len(self.numbers)}
        if self.kinds.keys() == {"integer", "code"}:
            self.kinds, self.numbers = {"code": sum(self.kinds.values())}, []
        kind = next(iter(self.kinds), "empty") if len(self.kinds) < 2 else "mixed (" + ", ".join(
            f"{count} {name}" for name, count in sorted(self.kinds.items())) + ")"
        parts = [kind, f"missing {missing} ({100 * missing / max(rows, 1):.1f}%)",
                 f"distinct {len(self.values)}{'+' if self.overflow else ''}"]
        if self.numbers:
            n, mean = self.numbers, statistics.fmean(self.numbers)
            spread = math.sqrt(math.fsum((v - mean) ** 2 for v in n) / (len(n) - 1)) if len(n) > 1 else 0.0
            parts.append(f"min {min(n):.10g}, max {max(n):.10g}, mean {mean:.6g}, "
                         f"median {statistics.median(n):.6g}, stdev {spread:.6g}, sum {math.fsum(n):.10g}")
        if kind == "date":
            parts.append(f"from {min(self.values)} to {max(self.values)}")
        elif self.values and (not self.numbers or "mixed" in kind):
            parts.append("top " + ", ".join(f"{v[:40]!r} x{c}" for v, c in self.values.most_common(3)))
        return "; ".join(parts)


def main():
    parser = argparse.ArgumentParser(prog="csv_summary", description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?")
    parser.add_argument("--delimiter", type=one_character, metavar="C", help="one character; guessed from the first lines when absent")
    parser.add_argument("--no-header", action="store_true", help="the first row is data")
    args = parser.parse_args()
    csv.field_size_limit(sys.maxsize)
    try:
        text = open_text(args.file)
    except OSError as error:
        parser.error(f"cannot read {args.file}: {error.strerror}")
    delimiter, reader = read_csv(text, args.delimiter, not args.no_header)
    head = next(reader, [])
    if args.no_header and head:
        reader, head = itertools.chain([head], reader), [""] * len(head)
    columns = [Column(name.strip() or f"column_{i}") for i, name in enumerate(head, 1)]
    rows = short = long = 0
    for row in reader:
        rows, short, long = rows + 1, short + (len(row) < len(columns)), long + (len(row) > len(columns))
        for column, cell in itertools.zip_longest(columns, row[:len(columns)], fillvalue=""):
            column.add(cell)
    print(f"rows: {rows}\ncolumns: {len(columns)}\ndelimiter: {delimiter!r}")
    if short or long:
        print(f"ragged rows: {short} too short, {long} too long")
    for i, column in enumerate(columns, 1):
        print(f"{i}. {column.name}: {column.describe(rows)}")


try:
    main()
except csv.Error as error:
    sys.exit(f"csv_summary: this is not valid CSV: {error}")
