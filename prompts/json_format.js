// Check JSON and print it indented or compact.
// Usage: json_format [--indent N] [--compact] [--sort] [FILE]   (reads standard input without FILE)
"use strict";

const fail = (message, code) => { console.error(`json_format: ${message}`); process.exit(code); };
const usage = (message) => fail(`${message}\nusage: json_format [--indent N] [--compact] [--sort] [FILE]`, 2);

// Imports are dynamic so that the script runs both as a CommonJS file and as a module.
async function read(path) {
  const chunks = [];
  if (path === undefined) for await (const chunk of process.stdin) chunks.push(chunk);
  else try { chunks.push((await import("node:fs")).readFileSync(path)); } catch (error) { usage(`cannot read ${path}: ${error.code}`); }
  const data = Buffer.concat(chunks);
  if (data[0] === 0xff && data[1] === 0xfe) return new TextDecoder("utf-16le").decode(data);
  try { return new TextDecoder("utf-8", { fatal: true }).decode(data); } catch { return data.toString("latin1").replace(/^ï»¿/, ""); }
}

// This is a parser of its own because JSON.parse would round 12345678901234567890 and drop duplicate keys silently.
// Every value is turned into its formatted text at once, so no tree of a large document is kept.
function format(text, indent, sort, duplicates) {
  const token = /([{}[\],:])|(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)|(")|$/y;
  const escape = /\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/y;
  const newline = indent ? "\n" : "", colon = indent ? ": " : ":";
  let kind, raw, start;
  const bad = (what) => {
    const before = text.slice(0, start).split("\n");
    fail(`${what} at line ${before.length}, column ${before.at(-1).length + 1}`, 1);
  };
  function next() {
    while (" \t\r\n".includes(text[token.lastIndex] ?? "x")) token.lastIndex++;
    start = token.lastIndex;
    const match = token.exec(text);
    if (!match) bad(`unexpected ${JSON.stringify(text[start])}`);
    [kind, raw] = match[1] ? [match[1], match[1]] : match[2] ? ["scalar", match[2]] : match[3] ? ["string", string(start)] : ["end", ""];
  }
  function string(from) {
    let end = from + 1;
    for (; text[end] !== '"'; end++) {
      start = end;
      if (end >= text.length || text[end] < " ") bad("unterminated string");
      if (text[end] !== "\\") continue;
      escape.lastIndex = end;
      if (!escape.test(text)) bad("bad escape");
      end = escape.lastIndex - 1;
    }
    start = from;
    token.lastIndex = end + 1;
    return text.slice(from, end + 1);
  }
  function value(margin) {
    const open = kind, leaf = raw;
    if (open !== "{" && open !== "[") {
      if (open !== "scalar" && open !== "string") bad(open === "end" ? "unexpected end of input" : `unexpected ${JSON.stringify(raw)}`);
      next();
      return leaf;
    }
    const close = open === "{" ? "}" : "]", inner = margin + " ".repeat(indent), items = [], keys = [], seen = new Set();
    for (next(); kind !== close; ) {
      if (items.length && kind !== ",") bad(`expected "," or "${close}"`);
      if (items.length) next();
      let prefix = "";
      if (open === "{") {
        if (kind !== "string") bad("expected a quoted key");
        if (seen.has(raw)) duplicates.add(raw);
        seen.add(raw);
        keys.push(JSON.parse(raw));
        prefix = raw + colon;
        next();
        if (kind !== ":") bad('expected ":"');
        next();
      }
      items.push(prefix + value(inner));
    }
    next();
    if (!items.length) return open + close;
    const order = [...items.keys()];
    if (sort && open === "{") order.sort((a, b) => (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b));
    return open + order.map((i) => newline + inner + items[i]).join(",") + newline + margin + close;
  }
  next();
  const result = value("");
  if (kind !== "end") bad("unexpected text after the document");
  return result;
}

async function main(args) {
  let indent = 2, sort = false, path;
  for (let i = 0; i < args.length; i++) {
    if (args[i] === "--compact") indent = 0;
    else if (args[i] === "--sort") sort = true;
    else if (args[i] === "--indent" && /^(1?[0-9])$/.test(args[i + 1] ?? "")) indent = Number(args[++i]);
    else if (args[i].startsWith("-") || path !== undefined) usage(`unexpected argument ${args[i]}`);
    else path = args[i];
  }
  const duplicates = new Set(), text = await read(path);
  try { console.log(format(text, indent, sort, duplicates)); } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    fail("the document is nested too deeply or is too large", 1);
  }
  if (duplicates.size) console.error(`json_format: duplicate keys: ${[...duplicates].join(", ")}`);
}

main(process.argv.slice(2));
