// The names that cells have declared, and where V8 keeps them (see rewriting.cjs).
//
// A name that was imported is a property with a getter, so that it follows the module. If the name has a slot, or was
// that of a function, it can't be one. Then it gets the value at the import, and again before each cell.

'use strict';

const { isModuleNamespaceObject } = require('node:util').types;
const { Script } = require('node:vm');

const inspector = require('./inspector.cjs');

const { global, Map, Set, SyntaxError, TypeError } = globalThis;
const { defineProperty, getOwnPropertyDescriptor, is, keys } = Object;
const { apply, deleteProperty } = Reflect;
const { has } = Set.prototype;
const { get } = Map.prototype;

/** Names that were declared with `let`, `const` or `class`, perhaps by code that has failed. */
const slots = new Set();
/** Names that can't be assigned to. */
const constants = new Set();
/** Names that were declared with `var`. */
const variables = new Set();
/** Functions that return the value of each name that was imported. */
const imported = new Map();
/** Those of them whose value can be read without running anything of the program. */
const readable = new Set();
/** Those that can't have a getter, with the value that they got. */
const copies = new Map();

const isSlot = (name) => slots.has(name);
const isConstant = (name) => constants.has(name);
const hasConstants = () => constants.size > 0;

/** Whether a name is a property that can't be removed, as a function is. */
function isProperty(name) {
  const { configurable, writable } = getOwnPropertyDescriptor(global, name) ?? {};
  return configurable === false && writable === true && !slots.has(name);
}

/** Whether a slot has a value. The code that declares it may have failed before. */
function hasValue(name) {
  try {
    new Script(name, { filename: __filename }).runInThisContext();
    return true;
  } catch {
    return false;
  }
}

/** Notes what a cell declares that is about to run. */
function declare({ variables: ofVar, properties, slots: inSlots, constants: constant }) {
  for (const name of ofVar) if (!slots.has(name)) declareVariable(name);
  for (const names of [ofVar, properties, inSlots]) for (const name of names) forget(name);
  for (const name of inSlots) {
    // What the program has made a property that can't be removed is left to V8, which refuses the declaration.
    if (variables.delete(name) && !deleteProperty(global, name)) continue;
    slots.add(name);
  }
  for (const name of constant) constants.add(name);
}

/** So that it can be declared in any other way later: what V8 declares with `var` can't be removed. */
function declareVariable(name) {
  forget(name);
  variables.add(name);
  if (getOwnPropertyDescriptor(global, name) !== undefined) return;
  try {
    defineProperty(global, name, { value: undefined, writable: true, enumerable: true, configurable: true });
  } catch {
    // The program has frozen the global object. V8 tells it so.
  }
}

/** The name is no longer what it was. */
function forget(name) {
  constants.delete(name);
  readable.delete(name);
  if (imported.delete(name) && !copies.delete(name)) delete global[name];
}

const failAssignment = () => {
  throw new TypeError('Assignment to constant variable.');
};

/** Gives a name what `get` returns, now and later. `isReadable`: that runs nothing of the program. */
function follow(name, get, isReadable) {
  if (!isIdentifier(name)) return;
  forget(name);
  if (isReadable) readable.add(name);
  const descriptor = getOwnPropertyDescriptor(global, name);
  const isOwn = descriptor === undefined || (variables.has(name) && descriptor.configurable);
  if (isOwn && !slots.has(name)) {
    defineProperty(global, name, { get, set: failAssignment, enumerable: false, configurable: true });
  } else {
    // What Node.js itself has there stays a property of the global object.
    const value = get();
    assign(name, value);
    copies.set(name, value);
  }
  imported.set(name, get);
  constants.add(name);
}

function assign(name, value) {
  if (isProperty(name)) {
    global[name] = value;
  } else {
    slots.add(name);
    inspector.declare(name, value);
  }
}

const isIdentifier = (name) => name !== 'default' && /^[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*$/u.test(name);

/** Gives the copies what the modules say now. One that the module or the program prevents stays as it is. */
function refresh() {
  for (const [name, before] of copies) {
    try {
      const value = imported.get(name)();
      if (is(value, before)) continue;
      copies.set(name, value);
      assign(name, value);
    } catch {
      // The code of the cell has nothing to do with it.
    }
  }
}

/** Binds names to those of a module: pairs of both. `*` is the module, and `**` stands for all that it exports. */
function bind(module, specifier, pairs) {
  const missing = pairs.find(([name]) => name[0] !== '*' && !(name in module));
  if (missing !== undefined) {
    throw new SyntaxError(`The requested module '${specifier}' does not provide an export named '${missing[0]}'`);
  }
  // A module that exports a function `then` can be replaced by anything.
  const isModule = isModuleNamespaceObject(module);
  for (const [name, here] of pairs) {
    if (name === '*') follow(here, () => module, true);
    else if (name !== '**') follow(here, () => module[name], isModule);
    else for (const each of keys(module)) follow(each, () => module[each], isModule);
  }
}

/** Binds names to variables of the cell. */
function alias(getters) {
  for (const name of keys(getters)) follow(name, getters[name], true);
}

/** The value of an imported name if that can be read without running anything, and otherwise `absent`. */
function importedValue(name, absent) {
  return apply(has, readable, [name]) ? apply(get, imported, [name])() : absent;
}

/** Stands for a constant where something is assigned to it: `value` can be read. */
function constant(name, value, set) {
  return {
    get value() {
      return value;
    },
    set value(it) {
      // It may have become something else since the code was rewritten.
      if (constants.has(name)) failAssignment();
      set(it);
    },
  };
}

module.exports = {
  isSlot,
  isProperty,
  isConstant,
  hasConstants,
  hasValue,
  declare,
  refresh,
  bind,
  alias,
  importedValue,
  constant,
};
