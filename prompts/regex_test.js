// List the matches of a regular expression.
// Usage: regex_test [--flags FLAGS] [--replace TEXT] PATTERN [FILE]   (reads standard input without FILE)
"use strict";

const SHOWN = 200; // More matches than this are counted but not listed.

const usage = (message) => {
  console.error(`regex_test: ${message}\nusage: regex_test [--flags FLAGS] [--replace TEXT] PATTERN [FILE]`);
  process.exit(2);
};

// Imports are dynamic so that the script runs both as a CommonJS file and as a module.
async function read(path) {
  const chunks = [];
  if (path === undefined) for await (const chunk of process.stdin) chunks.push(chunk);
  else try { chunks.push((await import("node:fs")).readFileSync(path)); } catch (error) { usage(`cannot read ${path}: ${error.code}`); }
  const data = Buffer.concat(chunks);
  if (data[0] === 0xff && data[1] === 0xfe) return new TextDecoder("utf-16le").decode(data);
  try { return new TextDecoder("utf-8", { fatal: true }).decode(data); } catch { return data.toString("latin1"); }
}

async function main(args) {
  let flags = "", replacement;
  const rest = [];
  for (let i = 0; i < args.length; i++) {
    if (rest.length === 0 && (args[i] === "--flags" || args[i] === "--replace")) {
      if (i + 1 === args.length) usage(`${args[i]} needs a value`);
      if (args[i] === "--flags") flags = args[++i];
      else replacement = args[++i];
    } else if (rest.length === 0 && args[i] === "--") rest.push(args[++i]);
    else rest.push(args[i]);
  }
  if (rest.length < 1 || rest.length > 2 || rest[0] === undefined) usage("expected one pattern and at most one file");
  let pattern;
  try { pattern = new RegExp(rest[0], flags.includes("g") ? flags : flags + "g"); } catch (error) { usage(error.message); }
  const text = await read(rest[1]);
  if (replacement !== undefined) return void process.stdout.write(text.replace(pattern, replacement));

  let count = 0, line = 1, lineStart = 0, scanned = 0;
  for (const match of text.matchAll(pattern)) {
    if (++count > SHOWN) continue;
    // Lines are counted from the last match onwards, so a long text is walked only once.
    for (let at; (at = text.indexOf("\n", scanned)) !== -1 && at < match.index; scanned = lineStart = at + 1) line++;
    const groups = Object.entries(match.groups ?? {}).map(([name, value]) => `${name}=${JSON.stringify(value) ?? "unset"}`);
    const numbered = match.slice(1).map((value, i) => `$${i + 1}=${JSON.stringify(value) ?? "unset"}`);
    console.log([`${line}:${match.index - lineStart + 1}`, JSON.stringify(match[0]), ...numbered, ...groups].join("  "));
  }
  if (count > SHOWN) console.log(`... and ${count - SHOWN} more`);
  console.log(`${count} ${count === 1 ? "match" : "matches"}`);
}

main(process.argv.slice(2));
