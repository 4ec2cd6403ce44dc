// Convert HTML to plain text.
// Usage: html_to_text [--links] [FILE]   (reads standard input without FILE; --links adds each address in brackets)
"use strict";

const BLOCKS = new Set(("address article aside blockquote body div dl dt dd fieldset figure footer form h1 h2 h3 h4 h5 h6 " +
  "header hr li main nav ol p pre section table tr ul title").split(" "));
const SPACED = new Set("h1 h2 h3 h4 h5 h6 p pre table ul ol blockquote title".split(" "));
const SKIPPED = new Set(["script", "style", "template", "svg", "noscript"]);
const ENTITIES = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: " ", copy: "©", reg: "®", trade: "™", hellip: "…", mdash: "—", ndash: "–",
  lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", laquo: "«", raquo: "»", bull: "•", middot: "·", euro: "€", pound: "£", yen: "¥",
  cent: "¢", sect: "§", deg: "°", plusmn: "±", times: "×", divide: "÷", frac12: "½", larr: "←", rarr: "→", uarr: "↑", darr: "↓",
  agrave: "à", aacute: "á", acirc: "â", auml: "ä", ccedil: "ç", egrave: "è", eacute: "é", ecirc: "ê", euml: "ë", iacute: "í",
  ntilde: "ñ", oacute: "ó", ouml: "ö", uacute: "ú", uuml: "ü", szlig: "ß", Auml: "Ä", Ouml: "Ö", Uuml: "Ü", Eacute: "É", shy: "",
};

// What browsers make of the bytes 0x80 to 0x9f in a page that is not UTF-8.
const C1 = "€\u0081‚ƒ„…†‡ˆ‰Š‹Œ\u008dŽ\u008f\u0090‘’“”•–—˜™š›œ\u009džŸ";
const western = (text) => text.replace(/[\x80-\x9f]/g, (c) => C1[c.charCodeAt(0) - 0x80]);

const usage = (message) => {
  console.error(`html_to_text: ${message}\nusage: html_to_text [--links] [FILE]`);
  process.exit(2);
};

// Imports are dynamic so that the script runs both as a CommonJS file and as a module.
async function read(path) {
  const chunks = [];
  if (path === undefined) for await (const chunk of process.stdin) chunks.push(chunk);
  else try { chunks.push((await import("node:fs")).readFileSync(path)); } catch (error) { usage(`cannot read ${path}: ${error.code}`); }
  const data = Buffer.concat(chunks);
  if (data[0] === 0xff && data[1] === 0xfe) return new TextDecoder("utf-16le").decode(data);
  try { return new TextDecoder("utf-8", { fatal: true }).decode(data); } catch { return western(data.toString("latin1")); }
}

const decode = (text) => text.replace(/&(?:#x([0-9a-f]{1,6})|#([0-9]{1,7})|([a-z0-9]+));?/gi, (whole, hex, decimal, name) => {
  if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : whole;
  const code = hex ? parseInt(hex, 16) : Number(decimal);
  return code > 0 && code <= 0x10ffff ? western(String.fromCodePoint(code)) : "\ufffd";
});

// A tag ends at the first ">" that is not inside a quoted attribute value.
function tagEnd(html, from) {
  for (let i = from, quote = "", previous = ""; i < html.length; i++) {
    const c = html[i];
    if (quote) quote = c === quote ? "" : quote;
    else if (c === ">") return i;
    else if (previous === "=" && (c === '"' || c === "'")) quote = c;
    if (c > " ") previous = c;
  }
  return -1;
}

const attribute = (tag, name) => {
  const match = new RegExp(`\\s${name}\\s*=\\s*(?:"([^"]*)"|'([^']*)'|([^\\s>]+))`, "i").exec(tag);
  return match ? decode(match[1] ?? match[2] ?? match[3]) : "";
};

// In the output \u0001 is a blank to keep, and \u0002 starts a new line unless one has just started.
function convert(html, links) {
  const out = [], lists = [], addresses = [];
  const opener = /<(?:!--|[!?]|(\/?)([a-zA-Z][a-zA-Z0-9-]*))/g;
  let pre = 0, position = 0, quotes = true;
  const text = (raw) => out.push(pre ? decode(raw).replace(/[ \t]/g, "\u0001") : decode(raw.replace(/[ \t\r\n\f]+/g, " ")));
  for (let match; (match = opener.exec(html)); opener.lastIndex = position) {
    text(html.slice(position, match.index));
    const closing = match[1] === "/", name = (match[2] ?? "").toLowerCase(), comment = match[0] === "<!--";
    let end = comment ? html.indexOf("-->", match.index) : quotes ? tagEnd(html, opener.lastIndex) : html.indexOf(">", match.index);
    // After an attribute that is never closed quotes are no longer trusted, which also keeps this linear.
    if (end < 0 && !comment && quotes) { quotes = false; end = html.indexOf(">", match.index); }
    position = end < 0 ? html.length : end + (comment ? 3 : 1);
    if (!name) continue;
    const tag = html.slice(match.index, position);
    if (!closing && SKIPPED.has(name) && !tag.endsWith("/>")) {
      const closer = new RegExp(`</${name}[^>]*>`, "gi");
      closer.lastIndex = position;
      position = closer.exec(html) ? closer.lastIndex : html.length;
      continue;
    }
    const nested = lists.length > 0 && /^[uo]l$/.test(name) && !(closing && lists.length === 1);
    if (BLOCKS.has(name)) out.push(SPACED.has(name) && !nested ? "\n\n" : "\u0002");
    if (name === "br") out.push("\n");
    if (name === "hr") out.push("----\u0002");
    if (name === "pre") pre = Math.max(0, pre + (closing ? -1 : 1));
    if (/^h[1-6]$/.test(name) && !closing) out.push("#".repeat(Number(name[1])) + " ");
    if (/^t[dh]$/.test(name) && closing) out.push("\t");
    if (name === "ul" || name === "ol") closing ? lists.pop() : lists.push(name === "ol" ? 1 : 0);
    if (name === "li" && !closing) {
      const top = lists.length - 1;
      out.push("\u0001".repeat(Math.min(20, Math.max(0, top) * 2)) + (lists[top] ? `${lists[top]++}. ` : "- "));
    }
    if (name === "img" && attribute(tag, "alt")) out.push(`[${attribute(tag, "alt")}]`);
    if (name === "a" && !closing) addresses.push(attribute(tag, "href"));
    if (name === "a" && closing) { const address = addresses.pop(); if (links && address) out.push(` [${address}]`); }
  }
  text(html.slice(position));
  const breaks = (run) => (/[\n\u0002]/.test(run) ? "\n".repeat(Math.min(2, Math.max(1, run.split("\n").length - 1))) : run);
  return out.join("").replace(/[ \t\n\u0002]+/g, breaks).replace(/\u0001/g, " ").replace(/^\n+/, "").trimEnd();
}

async function main(args) {
  const links = args.includes("--links"), files = args.filter((arg) => arg !== "--links");
  if (files.length > 1 || files[0]?.startsWith("-")) usage(`unexpected argument ${files.find((f) => f.startsWith("-")) ?? files[1]}`);
  console.log(convert((await read(files[0])).replace(/[\u0001\u0002]/g, ""), links));
}

main(process.argv.slice(2));
