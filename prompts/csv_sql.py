"""Run an SQL query over CSV files, each a table named after its file.

Usage: csv_sql [--json] [--delimiter C] QUERY [FILE ...]
sales.csv becomes the table sales; without FILE standard input becomes the table stdin.
The result is printed as CSV, or as one JSON object per line with --json.
"""
import argparse, codecs, collections, csv, io, itertools, json, math, os, re, sqlite3, sys

INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,17})")
NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
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


def quote(name):
    return '"' + name.replace('"', '""') + '"'


def unique(names):
    seen = set()
    for i, name in enumerate(names, 1):
        name = name.strip().replace("\0", "") or f"column_{i}"
        base, n = name, 2
        while name.lower() in seen:  # SQLite compares column names without regard to case.
            name, n = f"{base}_{n}", n + 1
        seen.add(name.lower())
        yield name


def load(database, table, text, delimiter):
    _, reader = read_csv(text, delimiter)
    columns = list(unique(next(reader, ["empty"])))
    kinds = ["INTEGER"] * len(columns)

    def cells():
        for row in reader:
            row = [cell.strip() or None for cell in row[:len(columns)]] + [None] * (len(columns) - len(row))
            for i, cell in enumerate(row):
                if cell is None or kinds[i] == "TEXT":
                    continue
                if kinds[i] == "INTEGER" and not INTEGER.fullmatch(cell):
                    kinds[i] = "REAL"
                # A leading zero marks a code such as a postcode, so the column stays text.
                if kinds[i] == "REAL" and not (NUMBER.fullmatch(cell) and math.isfinite(float(cell))):
                    kinds[i] = "TEXT"
            yield row

    # The types are known only after the last row, so the rows first go to a table of plain text.
    database.execute("CREATE TABLE _load (" + ", ".join(f"{quote(c)} TEXT" for c in columns) + ")")
    database.executemany(f"INSERT INTO _load VALUES ({', '.join('?' * len(columns))})", cells())
    database.execute(f"CREATE TABLE {quote(table)} (" + ", ".join(f"{quote(c)} {k}" for c, k in zip(columns, kinds)) + ")")
    database.execute(f"INSERT INTO {quote(table)} SELECT * FROM _load")
    database.execute("DROP TABLE _load")
    return f"{table}({', '.join(f'{c} {k}' for c, k in zip(columns, kinds))})"


parser = argparse.ArgumentParser(prog="csv_sql", description=__doc__.splitlines()[0])
parser.add_argument("query")
parser.add_argument("file", nargs="*")
parser.add_argument("--delimiter", type=one_character, metavar="C", help="one character; guessed from the first lines when absent")
parser.add_argument("--json", action="store_true", help="print one JSON object per row")
args = parser.parse_args()
csv.field_size_limit(sys.maxsize)
database, schema = sqlite3.connect(""), []  # The empty name lets a large table spill to disk.
try:
    for path in args.file or [None]:
        table = re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0]) if path else "stdin"
        schema.append(load(database, table, open_text(path), args.delimiter))
    cursor = database.execute(args.query)
    names = [column[0] for column in cursor.description or []]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names) if names and not args.json else None
    for row in cursor:
        print(json.dumps(dict(zip(names, row)), ensure_ascii=False)) if args.json else writer.writerow(row)
except OSError as error:
    parser.error(f"cannot read {path}: {error.strerror}")
except (sqlite3.Error, sqlite3.Warning, csv.Error) as error:
    sys.exit(f"csv_sql: {error}\ntables: {'; '.join(schema) or 'none loaded'}")
