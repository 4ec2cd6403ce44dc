// Completes names at a prompt, without running anything of the program: no getters, and no traps of proxies.
//
// A cell may have replaced the methods of strings, lists and objects, so none of them is called as such.

'use strict';

const { Dirent, Dir, opendirSync } = require('node:fs');
const { builtinModules } = require('node:module');
const { isArgumentsObject, isProxy, isStringObject } = require('node:util').types;
const { Script } = require('node:vm');

const inspector = require('./inspector.cjs');
const names = require('./names.cjs');

const { apply, ownKeys, getOwnPropertyDescriptor, getPrototypeOf } = Reflect;
const { from: bufferFrom, alloc, byteLength } = Buffer;
const { isArray } = Array;
const { isView } = ArrayBuffer;

const uncurried = (method) => (self, ...rest) => apply(method, self, rest);
const { charCodeAt, lastIndexOf, slice, startsWith, trimEnd, endsWith } = String.prototype;
const codeAt = uncurried(charCodeAt);
const lastIn = uncurried(lastIndexOf);
const part = uncurried(slice);
const begins = uncurried(startsWith);
const trimmed = uncurried(trimEnd);
const ends = uncurried(endsWith);
const sort = uncurried(Array.prototype.sort);
const hasOwn = uncurried(Object.prototype.hasOwnProperty);
const runHere = uncurried(Script.prototype.runInThisContext);
const readEntry = uncurried(Dir.prototype.readSync);
const closeFolder = uncurried(Dir.prototype.closeSync);
const isFolder = uncurried(Dirent.prototype.isDirectory);

const { global } = globalThis;
const PROTOTYPES = {
  __proto__: null,
  string: String.prototype,
  number: Number.prototype,
  boolean: Boolean.prototype,
  bigint: BigInt.prototype,
  symbol: Symbol.prototype,
};
const KEYWORDS = [
  'async', 'await', 'break', 'case', 'catch', 'class', 'const', 'continue', 'debugger', 'default', 'delete', 'do', 'else',
  'export', 'extends', 'false', 'finally', 'for', 'function', 'if', 'import', 'in', 'instanceof', 'let', 'new', 'null', 'of',
  'return', 'static', 'super', 'switch', 'this', 'throw', 'true', 'try', 'typeof', 'var', 'void', 'while', 'yield',
];

/**
 * Most names of an answer, most of which it is chosen, the longest of them in bytes, most parts of `a.b.c`, most prototypes, and
 * most files.
 */
const MOST_NAMES = 200;
const MOST_KEYS = 100_000;
const LONGEST_NAME = 200;
const MOST_PARTS = 20;
const MOST_PROTOTYPES = 100;
const MOST_FILES = 2000;

const ABSENT = {};
const DOT = 46;
const SLASH = 47;
const BACKSLASH = 92;

const isDigit = (code) => code >= 48 && code <= 57;

/** Can a character be in a name? Those outside ASCII are taken for letters. */
function isOfName(code) {
  const letter = code | 32;
  return isDigit(code) || (letter >= 97 && letter <= 122) || code === 95 || code === 36 || code > 127;
}

function isName(text) {
  if (text.length === 0 || isDigit(codeAt(text, 0))) return false;
  for (let at = 0; at < text.length; at += 1) if (!isOfName(codeAt(text, at))) return false;
  return true;
}

/** The names that begin like a text, each once. Those with an underscore are left out if it does not begin with one. */
class Found {
  constructor(start, allows = isName) {
    this.start = start;
    this.allows = allows;
    this.seen = { __proto__: null };
    this.list = [];
    this.left = MOST_KEYS;
  }

  add(name) {
    if (typeof name !== 'string' || !begins(name, this.start) || this.seen[name] === true) return;
    if (this.start === '' && (codeAt(name, 0) === 95 || codeAt(name, 0) === DOT)) return;
    if (name.length > LONGEST_NAME || byteLength(name) > LONGEST_NAME || !this.allows(name)) return;
    this.seen[name] = true;
    this.list[this.list.length] = name;
  }

  addAll(list) {
    for (let at = 0; at < list.length && this.left > 0; at += 1) {
      this.left -= 1;
      this.add(list[at]);
    }
    return this;
  }

  get names() {
    sort(this.list);
    if (this.list.length > MOST_NAMES) this.list.length = MOST_NAMES;
    return this.list;
  }
}

/**
 * Calls `visit` for each object that has properties of a value, until it returns true: the value itself and its prototypes,
 * as far as none is a proxy.
 */
function forEachOwner(value, visit) {
  const isObject = (typeof value === 'object' && value !== null) || typeof value === 'function';
  let it = isObject ? value : PROTOTYPES[typeof value] ?? null;
  for (let left = MOST_PROTOTYPES; it !== null && left > 0 && !isProxy(it); left -= 1) {
    if (visit(it) === true) return;
    it = getPrototypeOf(it);
  }
}

/** The value of a property, if nothing has to run for it. */
function property(value, name) {
  let found = ABSENT;
  forEachOwner(value, (owner) => {
    const descriptor = getOwnPropertyDescriptor(owner, name);
    if (descriptor === undefined) return false;
    if (hasOwn(descriptor, 'value')) found = descriptor.value;
    return true;
  });
  return found;
}

/** The value of a variable. */
function variable(name, lexical) {
  if (name === 'this') return global;
  for (let at = 0; at < lexical.length; at += 1) {
    // A variable that was declared as a cell declares it. To read it runs nothing.
    if (lexical[at] === name) return runHere(new Script(name, { filename: __filename }));
  }
  const value = property(global, name);
  return value === ABSENT ? names.importedValue(name, ABSENT) : value;
}

/** Does an object have elements, each of which would be a name? */
function isList(owner) {
  if (isView(owner) || isArgumentsObject(owner)) return true;
  // The prototypes of both are such, too, and have none.
  return (isArray(owner) || isStringObject(owner)) && getOwnPropertyDescriptor(owner, 'length').value > 0;
}

function addProperties(found, value) {
  forEachOwner(value, (owner) => {
    // The engine lists all keys of an object or none. What follows from that is bounded.
    if (isList(owner)) found.add('length');
    else found.addAll(ownKeys(owner));
    return found.left === 0;
  });
}

/** Where the text of a string that is open at the end of a line begins; -1 if there is none. */
function openString(line) {
  let quote = 0;
  let start = -1;
  for (let at = 0; at < line.length; at += 1) {
    const code = codeAt(line, at);
    if (quote === 0 && code === SLASH && codeAt(line, at + 1) === SLASH) return -1;
    if (quote !== 0 && code === BACKSLASH) {
      at += 1;
    } else if (code === quote) {
      quote = 0;
    } else if (quote === 0 && (code === 34 || code === 39 || code === 96)) {
      quote = code;
      start = at + 1;
    }
  }
  return quote === 0 ? -1 : start;
}

/** The files whose path begins like this, with a slash after folders. */
function addFiles(found, folder) {
  let opened;
  try {
    opened = opendirSync(folder === '' ? '.' : folder);
  } catch {
    return;
  }
  try {
    for (let left = MOST_FILES; left > 0; left -= 1) {
      const entry = readEntry(opened);
      if (entry === null) break;
      found.add(isFolder(entry) ? `${entry.name}/` : entry.name);
    }
  } finally {
    closeFolder(opened);
  }
}

function ofString(text, line, start) {
  const path = part(line, start);
  const before = trimmed(part(line, 0, start - 1));
  const folder = part(path, 0, lastIn(path, '/') + 1);
  const last = part(path, folder.length);
  const found = new Found(last, () => true);
  const isModule = ends(before, 'require(') || ends(before, 'import(') || ends(before, 'from') || ends(before, 'import');
  if (isModule && folder === '') found.addAll(builtinModules);
  else addFiles(found, folder);
  return { start: text.length - last.length, names: found.names };
}

/** The word at the end of a line, and the names before its points; null if that would have to be evaluated. */
function path(line) {
  let start = line.length;
  while (start > 0 && isOfName(codeAt(line, start - 1))) start -= 1;
  const word = part(line, start);
  const before = [];
  let at = start;
  while (at > 0 && codeAt(line, at - 1) === DOT) {
    let end = at - 1;
    if (end > 0 && codeAt(line, end - 1) === 63) end -= 1;
    at = end;
    while (at > 0 && isOfName(codeAt(line, at - 1))) at -= 1;
    const name = part(line, at, end);
    if (!isName(name) || before.length === MOST_PARTS) return { word, before: null };
    before[before.length] = name;
  }
  return { word, before };
}

/** Where the word at the end of a text begins, and the names that it may become. */
function complete(text) {
  const line = part(text, lastIn(text, '\n') + 1);
  const string = openString(line);
  if (string >= 0) return ofString(text, line, string);
  const { word, before } = path(line);
  const found = new Found(word);
  const start = text.length - word.length;
  if (before === null || (word !== '' && isDigit(codeAt(word, 0)))) return { start, names: [] };
  const lexical = inspector.lexicalNames();
  if (before.length === 0) {
    addProperties(found.addAll(lexical).addAll(KEYWORDS), global);
  } else {
    let value = variable(before[before.length - 1], lexical);
    for (let at = before.length - 2; at >= 0 && value !== ABSENT; at -= 1) value = property(value, before[at]);
    if (value !== ABSENT) addProperties(found, value);
  }
  return { start, names: found.names };
}

/** The parts of the answer to the runner. */
function answer(text) {
  let completed = { start: text.length, names: [] };
  try {
    completed = complete(text);
  } catch {
    // A name without a value yet, or a program has broken what this needs.
  }
  const head = alloc(4);
  head.writeUInt32BE(byteLength(part(text, 0, completed.start)));
  const parts = [head];
  for (let at = 0; at < completed.names.length; at += 1) {
    const name = bufferFrom(completed.names[at]);
    const length = alloc(2);
    length.writeUInt16BE(name.length);
    parts[parts.length] = length;
    parts[parts.length] = name;
  }
  return parts;
}

module.exports = { answer };
