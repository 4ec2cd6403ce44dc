// Makes of the source of a cell what V8 can evaluate.

'use strict';

const { Script } = require('node:vm');

const names = require('./names.cjs');
const { rewrite } = require('./rewriting.cjs');

const { process, Buffer, Set, SyntaxError } = globalThis;
const { parse: fromJson } = JSON;

/** Loads a parser that is a part of Node.js. */
function ofNode(name) {
  const file = `internal/deps/${name}`;
  const loaded = { exports: {} };
  const text = process.binding('natives')[file];
  const load = new Script(`(function (exports, module) {${text}\n})`, { filename: `node:${file}` }).runInThisContext();
  load(loaded.exports, loaded);
  return loaded.exports;
}

let acorn;

function warmUp() {
  acorn ??= ofNode('acorn/acorn/dist/acorn');
}

const OPTIONS = {
  ecmaVersion: 'latest',
  sourceType: 'script',
  allowHashBang: true,
  allowAwaitOutsideFunction: true,
  allowImportExportEverywhere: true,
};

function parse(code) {
  warmUp();
  try {
    return acorn.parse(code, OPTIONS);
  } catch (error) {
    if (!code.includes('using')) throw error;
    // It belongs to no script for the parser, but V8 takes it in a cell.
    for (const sourceType of ['commonjs', 'module']) {
      try {
        return acorn.parse(code, { ...OPTIONS, sourceType });
      } catch {
        // The first reason is the best.
      }
    }
    throw error;
  }
}

/** How a cell is shown to V8 and what it declares. Its positions can be followed back. */
class Prepared {
  constructor(code) {
    this.text = code;
    this.declared = null;
    /** Functions that lead back to where a place was, the last change first. */
    this.steps = [];
    /** Why the parser does not take it. V8 says that better, unless it only finds that a cell is no module. */
    this.problem = null;
  }

  /** Where something is in the cell. Lines and columns count from 1. */
  origin(place) {
    return this.steps.reduce((it, step) => step(it), place);
  }

  get isInPlace() {
    return this.steps.length === 0;
  }
}

/**
 * Prepares a cell. `name` is its name, for errors.
 *
 * Throws an error if it is no TypeScript.
 */
function prepare(code, isTypeScript, name) {
  const it = new Prepared(code);
  const isTranslated = isTypeScript && withoutTypes(it, name);
  if (isObject(it.text)) {
    it.text = `(${it.text}\n)`;
    it.steps.unshift(({ line, column }) => ({ line, column: line === 1 ? column - 1 : column }));
  }
  let tree;
  try {
    tree = parse(it.text);
  } catch (error) {
    it.problem = problemOf(error);
    return it;
  }
  try {
    const { edited, declared } = rewrite(it.text, tree, names, isTranslated ? merged(tree) : new Set());
    it.text = edited.text;
    it.declared = declared;
    if (!edited.isInPlace) it.steps.unshift((place) => edited.origin(place));
  } catch {
    // A program has replaced what this needs, or the tree is too deep. V8 evaluates the cell all the same.
  }
  return it;
}

/** The error of the parser as one of V8. It writes its position behind the message. */
function problemOf({ message, loc }) {
  if (loc === undefined) return null;
  return { error: new SyntaxError(message.replace(/ \(\d+:\d+\)$/, '')), line: loc.line, column: loc.column + 1 };
}

/** True for `{a: 1}`, which would be a block, and for `{a: 1}.a`. What goes on in another line is a statement of its own. */
function isObject(code) {
  if (!/^\s*\{/.test(code) || /;\s*$/.test(code)) return false;
  const text = `(${code}\n)`;
  let tree;
  try {
    tree = parse(text);
  } catch {
    return false;
  }
  const [{ expression }, ...others] = tree.body;
  if (expression === undefined || others.length > 0) return false;
  const object = leftmost(expression);
  return object !== null && !BREAK.test(text.slice(object.end, expression.end));
}

/** What is between two parts of an expression, if they are not in one line. */
const BREAK = /^([^\S\n]|\/\*(?:(?!\*\/).)*\*\/)*(\/\/.*)?\n/;

/** The object with which an expression begins. */
function leftmost(expression) {
  let it = expression;
  while (it !== undefined && !/^Object(Expression|Pattern)$/.test(it.type)) {
    it = it.object ?? it.callee ?? it.left ?? it.test ?? it.tag ?? it.argument ?? it.expression ?? it.expressions?.[0];
  }
  return it ?? null;
}

// --- TypeScript ---

/** Removes the types, and translates what is more than a type, such as an enum. Returns whether there was that. */
function withoutTypes(it, name) {
  const { stripTypeScriptTypes, SourceMap } = require('node:module');
  if (stripTypeScriptTypes === undefined) {
    throw new SyntaxError(`TypeScript needs Node.js 22.13 or newer, and this is ${process.version}`);
  }
  // It warns that it is experimental.
  const { emitWarning } = process;
  process.emitWarning = () => {};
  try {
    it.text = stripTypeScriptTypes(it.text);
    return false;
  } catch (error) {
    if (error.code !== 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') throw namingTheCell(error, name);
    const [text, map] = stripTypeScriptTypes(it.text, { mode: 'transform', sourceMap: true }).split(SOURCE_MAP);
    it.text = text;
    const origins = new SourceMap(fromJson(Buffer.from(map, 'base64').toString()));
    it.steps.unshift(({ line, column }) => {
      const { originalLine, originalColumn } = origins.findEntry(line - 1, column - 1);
      return originalLine === undefined ? { line, column } : { line: originalLine + 1, column: originalColumn + 1 };
    });
    return true;
  } finally {
    process.emitWarning = emitWarning;
  }
}

const SOURCE_MAP = '\n\n//# sourceMappingURL=data:application/json;base64,';

/**
 * The names of enums and namespaces in translated code. What they were in earlier cells would be merged with what they
 * are now: the translation says `Name || {}`, because there may be more than one declaration.
 */
function merged({ body }) {
  const found = new Set();
  const note = (call) => {
    const [argument] = call?.type === 'CallExpression' && call.callee.type === 'FunctionExpression' ? call.arguments : [];
    if (argument?.type === 'LogicalExpression' && argument.left.type === 'Identifier') found.add(argument.left.name);
  };
  for (const it of body) {
    const declaration = it.declaration ?? it;
    if (declaration.type === 'ExpressionStatement') note(declaration.expression);
    for (const { init } of declaration.declarations ?? []) note(init);
  }
  return found;
}

/** The error of a code that has no name for Node.js: before the line it writes only a colon. */
function namingTheCell({ message, stack }, name) {
  const error = new SyntaxError(message);
  const [before] = stack.split('\n\n', 1);
  error.stack = before.startsWith(':') ? `${name}${before}\n\n${error}` : `${error}`;
  return error;
}

module.exports = { prepare, warmUp };
