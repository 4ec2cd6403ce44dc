"""Show the structure of a JSON document.

Usage: json_shape [--at PATH] [FILE]
PATH selects a part first, for example items[0].name; without FILE standard input is read.
"""
import argparse, codecs, collections, json, re, sys

MAP_KEYS = 60  # An object with more keys than this is a table keyed by id, so its values are merged.
STEP = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")
codecs.register_error("legacy", lambda e: (e.object[e.start:e.end].decode("cp1252", "replace"), e.end))


class Node:
    def __init__(self):
        self.types, self.children = collections.Counter(), {}
        self.example, self.sizes = None, []

    def child(self, key):
        return self.children.setdefault(key, Node())


def type_name(value):
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return names.get(type(value), "null")


def build(document):
    root = Node()
    pending = [(root, document)]  # An explicit stack copes with nesting deeper than Python's own.
    while pending:
        node, value = pending.pop()
        node.types[type_name(value)] += 1
        if isinstance(value, dict):
            merged = len(value) > MAP_KEYS
            items = [(node.child(".*" if merged else f".{key}"), item) for key, item in value.items()]
            node.sizes.append(len(value)) if merged else None
        elif isinstance(value, list):
            items = [(node.child("[]"), item) for item in value]
            node.sizes.append(len(value))
        else:
            items = []
            if node.example is None and value is not None:
                text = json.dumps(value, ensure_ascii=False)
                node.example = text if len(text) <= 60 else text[:57] + "..."
        pending.extend(reversed(items))
    return root


def show(root):
    pending = [("$", root, 0)]
    while pending:
        path, node, parents = pending.pop()
        line = f"{path}: " + " | ".join(f"{name} x{count}" for name, count in node.types.most_common())
        if node.sizes:
            low, high = min(node.sizes), max(node.sizes)
            line += f", size {low}" if low == high else f", size {low} to {high}"
        if path.rpartition(".")[2] != "*" and not path.endswith("[]") and node.types.total() < parents:
            line += f", absent in {parents - node.types.total()}"
        print(line + (f", e.g. {node.example}" if node.example is not None else ""))
        pending.extend((path + key, child, node.types["object"]) for key, child in reversed(node.children.items()))


def select(value, path):
    for match in STEP.finditer(path.removeprefix("$")):
        index, key = match.groups()
        try:
            value = value[int(index)] if index is not None and isinstance(value, list) else value[key or index]
        except (KeyError, IndexError, TypeError):
            sys.exit(f"json_shape: {path!r} does not lead anywhere: nothing at {match.group()!r}")
    return value


def parse(text):
    try:
        return json.loads(text)
    except ValueError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            if len(lines) > 1:
                return [json.loads(line) for line in lines]  # JSON Lines is shown as one array.
        except ValueError:
            pass
        sys.exit(f"json_shape: {'the input is empty' if not lines else f'not valid JSON: {error}'}")
    except RecursionError:
        sys.exit("json_shape: the document is nested too deeply to parse")


parser = argparse.ArgumentParser(prog="json_shape", description=__doc__.splitlines()[0])
parser.add_argument("file", nargs="?")
parser.add_argument("--at", default="", metavar="PATH", help="show only the part at PATH, such as items[0].name")
args = parser.parse_args()
try:
    data = open(args.file, "rb").read() if args.file else sys.stdin.buffer.read()
except OSError as error:
    parser.error(f"cannot read {args.file}: {error.strerror}")
codec = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
show(build(select(parse(data.decode(codec, "legacy")), args.at)))
