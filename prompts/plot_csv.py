"""Plot columns of a CSV file as a picture.

Usage: plot_csv [--kind line|scatter|bar|hist] [--x COLUMN] [--y COLUMN ...] [--title T] [--out plot.png] [--delimiter C] [FILE]
By default the first column is x and every other numeric column is y; without FILE standard input is read.
"""
import argparse, codecs, collections, csv, datetime, io, itertools, math, os, re, sys, tempfile

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


def number(cell):
    try:
        value = float(cell)
        return value if math.isfinite(value) else math.nan
    except ValueError:
        return math.nan


def axis(cells):
    """Return numbers if every cell is one, else dates, else the plain labels."""
    values = [number(cell) for cell in cells]
    if not any(map(math.isnan, values)):
        return values
    try:
        return [datetime.datetime.fromisoformat(cell.replace("Z", "+00:00")) for cell in cells]
    except ValueError:
        return cells


parser = argparse.ArgumentParser(prog="plot_csv", description=__doc__.splitlines()[0])
parser.add_argument("file", nargs="?")
parser.add_argument("--x", metavar="COLUMN")
parser.add_argument("--y", metavar="COLUMN", action="append", default=[], help="may be repeated")
parser.add_argument("--kind", choices=["line", "scatter", "bar", "hist"], default="line")
parser.add_argument("--out", default="plot.png")
parser.add_argument("--title", default="")
parser.add_argument("--delimiter", type=one_character, metavar="C", help="one character; guessed from the first lines when absent")
args = parser.parse_args()
csv.field_size_limit(sys.maxsize)
try:
    text = open_text(args.file)
    rows = [[cell.strip() for cell in row] for row in read_csv(text, args.delimiter)[1]]
except OSError as error:
    parser.error(f"cannot read {args.file}: {error.strerror}")
except csv.Error as error:
    sys.exit(f"plot_csv: this is not valid CSV: {error}")
if len(rows) < 2:
    sys.exit("plot_csv: the input needs a header and at least one row")
names, width = rows[0], len(rows[0])
columns = dict(zip(names, zip(*((row + [""] * width)[:width] for row in rows[1:]))))
for name in args.y + ([args.x] if args.x else []):
    if name not in columns:
        parser.error(f"no column {name!r}; the columns are: {', '.join(names)}")
x = None if args.kind == "hist" else args.x or (names[0] if names[0] not in args.y and len(names) > 1 else None)
numeric = [n for n in columns if n != x and not all(math.isnan(number(c)) for c in columns[n])]
ys = args.y or numeric
if not ys:
    sys.exit("plot_csv: no numeric column to plot")

# The library wants a writable directory for its cache, and the home directory may not be one.
os.environ.setdefault("MPLCONFIGDIR", tempfile.gettempdir())
try:
    import matplotlib
except ImportError:
    sys.exit("plot_csv: matplotlib is not installed here")
matplotlib.use("Agg")
from matplotlib import pyplot

figure, axes = pyplot.subplots(figsize=(10, 6), layout="constrained")
positions = axis(list(columns[x])) if x else list(range(1, len(rows)))
labels = args.kind == "bar" or (positions and isinstance(positions[0], str))
places = list(range(len(positions))) if labels else positions
for i, name in enumerate(ys):
    values = [number(cell) for cell in columns[name]]
    plotted = sum(not math.isnan(v) for v in values)
    print(f"{name}: {plotted} plotted, {len(values) - plotted} skipped")
    if args.kind == "hist":
        axes.hist([v for v in values if not math.isnan(v)], bins="auto" if plotted < 10_000 else 100, alpha=0.6, label=name)
    elif args.kind == "bar":
        axes.bar([p + 0.8 * (i + 0.5) / len(ys) - 0.4 for p in places], values, 0.8 / len(ys), label=name)
    else:
        style = {"linestyle": "", "marker": "."} if args.kind == "scatter" else {"marker": "." if plotted < 100 else ""}
        axes.plot(places, values, label=name, **style)
if labels:
    shown = places[::max(1, len(places) // 30)]  # More labels than this would overlap.
    axes.set_xticks(shown, [str(columns[x][p])[:30] if x else str(p + 1) for p in shown], rotation=45, ha="right")
axes.set(title=args.title, xlabel=x or ("value" if args.kind == "hist" else "row"), ylabel=ys[0] if len(ys) == 1 and args.kind != "hist" else "")
axes.legend() if len(ys) > 1 or args.kind == "hist" else None
axes.grid(alpha=0.3)
try:
    figure.savefig(args.out, format="png", dpi=120)
except OSError as error:
    parser.error(f"cannot write {args.out}: {error.strerror}")
print(f"saved {args.out}")
