// How a session shows values and errors.

'use strict';

const { inspect, types } = require('node:util');

const { isNativeError, isPromise, isUint8Array } = types;
const { Buffer, WeakMap, Map, Error } = globalThis;
const { from: bufferFrom, alloc, byteLength } = Buffer;
const { stringify } = JSON;
const { defineProperty, entries } = Object;

const FORMS = Symbol.for('Jupyter.display');

/** The longest content of each form, in bytes. */
const LIMITS = {
  __proto__: null,
  'text/plain': 64 << 10,
  'text/html': 512 << 10,
  'image/png': 4 << 20,
  'image/jpeg': 4 << 20,
  'image/svg+xml': 4 << 20,
  'text/markdown': 4 << 20,
  'text/latex': 4 << 20,
  'application/json': 4 << 20,
};

/** Most bytes of all forms of a thing: the runner takes no message that is much longer. */
const MOST_OF_A_THING = 7 << 20;

/** With what a picture begins. */
const SIGNATURES = [
  ['image/png', bufferFrom('\x89PNG\r\n\x1a\n', 'latin1')],
  ['image/jpeg', bufferFrom('\xff\xd8\xff', 'latin1')],
];

const CUT = '\n… (the rest was left out)';

/** How much source of earlier cells is kept for the lines that errors show, in characters. */
const KEPT_SOURCE = 4 << 20;

/** How many frames the kernel has below a cell, at most. */
const KERNEL_FRAMES = 10;

/** Longest line of source that an error shows, in characters. */
const LONGEST_LINE = 500;

/** The first bytes of a text, but no half of a character. */
function cut(text, limit) {
  const bytes = bufferFrom(text);
  if (bytes.length <= limit) return bytes;
  let end = limit;
  while ((bytes[end] & 0xc0) === 0x80) end -= 1;
  return bytes.subarray(0, end);
}

// --- Values ---

function plain(value) {
  const bytes = bufferFrom(inspect(value));
  const limit = LIMITS['text/plain'];
  if (bytes.length <= limit) return bytes;
  return bufferFrom(cut(bytes.toString(), limit - byteLength(CUT)).toString() + CUT);
}

/**
 * In which forms a value can be shown, as pairs of media type and bytes. A promise of a bundle for `ofBundle`, if the
 * value takes time for that. `isPicture`: bytes are shown as the picture that they are.
 */
function forms(value, isPicture) {
  if (isPicture && isUint8Array(value)) {
    const bytes = bufferFrom(value);
    for (const [type, signature] of SIGNATURES) {
      if (bytes.subarray(0, signature.length).equals(signature) && bytes.length <= LIMITS[type]) {
        return [[type, bytes], ['text/plain', plain(value)]];
      }
    }
  }
  const isObject = (typeof value === 'object' && value !== null) || typeof value === 'function';
  if (!isObject || typeof value[FORMS] !== 'function') return [['text/plain', plain(value)]];
  const bundle = value[FORMS]();
  return isPromise(bundle) ? bundle : ofBundle(value, bundle);
}

/** The same of what an object says of itself. */
function ofBundle(value, bundle) {
  const found = [];
  // There is always room for the text.
  let left = MOST_OF_A_THING - LIMITS['text/plain'];
  if (typeof bundle === 'object' && bundle !== null) {
    for (const [type, content] of entries(bundle)) {
      if (LIMITS[type] === undefined) continue;
      const bytes = bytesOf(type, content);
      if (bytes === null) continue;
      if (type === 'text/plain') {
        found.push([type, bytes.length <= LIMITS[type] ? bytes : cut(bytes.toString(), LIMITS[type])]);
      } else if (bytes.length <= LIMITS[type] && bytes.length <= left) {
        left -= bytes.length;
        found.push([type, bytes]);
      }
    }
  }
  return found.length > 0 ? found : [['text/plain', plain(value)]];
}

function bytesOf(type, content) {
  if (isUint8Array(content)) return bufferFrom(content);
  if (type === 'application/json') {
    const text = stringify(content);
    return text === undefined ? null : bufferFrom(text);
  }
  if (typeof content !== 'string') return null;
  return bufferFrom(content, type === 'image/png' || type === 'image/jpeg' ? 'base64' : 'utf8');
}

/** The forms as the parts of a message. */
function parts(them) {
  return them.flatMap(([type, bytes]) => {
    const typeLength = alloc(2);
    typeLength.writeUInt16BE(type.length);
    const length = alloc(4);
    length.writeUInt32BE(bytes.length);
    return [typeLength, bufferFrom(type), length, bytes];
  });
}

// --- Errors ---

/** Where errors were made: the first frame in a cell. */
const places = new WeakMap();
/** The cells whose source is kept, and what V8 has of them if that is another text. */
const sources = new Map();
let keptSource = 0;

/** Keeps the source of a cell, and forgets the oldest ones. */
function keep(number, code) {
  forget(number);
  keptSource += code.length;
  sources.set(number, { code, prepared: null });
  for (const oldest of sources.keys()) {
    if (keptSource <= KEPT_SOURCE) break;
    forget(oldest);
  }
}

function forget(number) {
  const { code = '', prepared = null } = sources.get(number) ?? {};
  keptSource -= code.length + (prepared?.text.length ?? 0);
  sources.delete(number);
}

/** Keeps where the parts of a text come from that V8 has instead of a cell's source. */
function keepOrigins(number, prepared) {
  const kept = sources.get(number);
  if (kept === undefined) return;
  kept.prepared = prepared;
  keptSource += prepared.text.length;
}

/** Where something is in the source of a cell. */
function placeOf(number, line, column) {
  return sources.get(number)?.prepared?.origin({ line, column }) ?? { line, column };
}

/** The name that a cell has for V8, which allows no blank there. */
const nameForV8 = (number) => `<cell-${number}>`;
const CELL = /<cell-(\d+)>(?::(\d+):(\d+))?/g;

/** The text of a frame with the names of cells, and places in their sources. */
const named = (site) =>
  `${site}`.replace(CELL, (_, number, line, column) => {
    if (line === undefined) return `<cell ${number}>`;
    const place = placeOf(parseInt(number, 10), parseInt(line, 10), parseInt(column, 10));
    return `<cell ${number}>:${place.line}:${place.column}`;
  });

const fileOf = (site) => site.getScriptNameOrSourceURL() ?? '';

/** The frames without those of the kernel, and of what calls the kernel or is called by it to run a cell. */
function withoutKernel(sites) {
  const isKernel = (site) => fileOf(site).startsWith(`${__dirname}/`);
  const last = sites.findLastIndex(isKernel);
  const kept = [];
  const leaveCaller = () => {
    while (kept.length > 0 && /^node:(vm|internal\/process\/task_queues)$/.test(fileOf(kept.at(-1)))) kept.pop();
  };
  for (const [i, site] of sites.entries()) {
    if (isKernel(site)) leaveCaller();
    else if (i < last || last < 0 || !fileOf(site).startsWith('node:')) kept.push(site);
  }
  // The stack may have been too long to reach the kernel.
  if (kept.length > 0 && fileOf(kept.at(-1)) === 'node:vm') kept.pop();
  return kept;
}

/** Lets the stacks of errors name the cells, and not the kernel. */
function cleanStacks() {
  // Node.js 20 has none of its own here.
  const { prepareStackTrace: usual } = Error;
  const format = (error, frames) => {
    if (usual !== undefined) return usual(error, frames);
    return [`${error}`, ...frames].join('\n    at ');
  };
  const prepareStackTrace = (error, sites) => {
    const frames = [];
    let place;
    for (const site of withoutKernel(sites)) {
      const file = fileOf(site);
      if (place === undefined && file.startsWith('<cell-')) {
        const number = parseInt(file.slice(6), 10);
        place = { number, ...placeOf(number, site.getLineNumber(), site.getColumnNumber()) };
      }
      frames.push(named(site));
    }
    if (place !== undefined) places.set(error, place);
    return format(error, frames);
  };
  // The kernel's own frames count, too, and would leave no room for those of the program.
  Error.stackTraceLimit += KERNEL_FRAMES;
  defineProperty(prepareStackTrace, 'name', { value: usual?.name ?? 'prepareStackTrace' });
  defineProperty(Error, 'prepareStackTrace', {
    value: prepareStackTrace,
    writable: true,
    enumerable: false,
    configurable: true,
  });
}

/** An error as Node.js prints one that is not caught. `place` is for one without frames. */
function describe(error, place) {
  const isError = isNativeError(error);
  let text;
  try {
    text = inspect(error);
    // So it shows an error without frames.
    if (isError && text === `[${error.stack}]`) text = error.stack;
  } catch {
    text = '[a value that can\'t be shown]';
  }
  const head = isError ? excerpt(place ?? places.get(error)) : 'Uncaught ';
  return `${head}${text}\n`;
}

/** The first line of an error. */
function inOneLine(error) {
  try {
    return `${error}`.split('\n', 1)[0];
  } catch {
    return '[a value that can\'t be shown]';
  }
}

function excerpt(place) {
  if (place === undefined) return '';
  const { number, line, column } = place;
  const text = sources.get(number)?.code.split('\n')[line - 1];
  if (text === undefined || text.length > LONGEST_LINE) return `<cell ${number}>:${line}\n`;
  // A tab stays one, or the caret would be elsewhere.
  const indent = text.slice(0, column - 1).replace(/[^\t]/g, ' ');
  return `<cell ${number}>:${line}\n${text}\n${indent}^\n\n`;
}

/** The longest part of an error for a program, in characters. */
const LONGEST_ERROR = 256 << 10;

/** The form of an error that a program gets. `text` is how Node.js prints it. */
function ofError(error, text) {
  let name = 'Error';
  let value = text;
  try {
    if (isNativeError(error)) {
      name = `${error.name}`;
      value = `${error.message}`;
    }
  } catch {
    // It is there as it is printed.
  }
  const longest = [name, value, text].map((part) => part.slice(0, LONGEST_ERROR));
  const content = stringify({ name: longest[0], value: longest[1], traceback: longest[2] });
  return ['application/vnd.isolator.error', bufferFrom(content)];
}

module.exports = { forms, ofBundle, ofError, parts, keep, keepOrigins, nameForV8, cleanStacks, describe, inOneLine };
