// Loads modules again that have changed in the workspace. Node.js keeps a file as it was when it was first loaded, which
// is right for a program. A session writes files and loads them again.
//
// Before a cell loads something, the files are looked at that were loaded before. Those that have changed, and those that
// have loaded them, are loaded anew: with another address for `import`, and without what is kept for `require`. All others
// stay, with their state. Packages in node_modules are taken to stay as they are.

'use strict';

// Not by its name: that would load more of Node.js than a program finds.
const Module = module.constructor;
const { statSync } = require('node:fs');

const { Map, Set, URL } = globalThis;
const { assign, defineProperty, keys } = Object;
const { registerHooks } = Module;

/** The modules of the workspace that were imported, by path: how the file was, its version, and what it imports. */
const imported = new Map();
/** How the files were that are kept for `require`, by path. */
const required = new Map();

let folder;
let isHooked = false;

/** How a file is: something else when it was written. */
function stamp(file) {
  try {
    const { mtimeNs, size, ino } = statSync(file, { bigint: true });
    return `${mtimeNs} ${size} ${ino}`;
  } catch {
    return '';
  }
}

const isOwn = (file) => file.startsWith(folder) && !file.includes('/node_modules/');

/** The path of a module of the workspace, if the address has nothing but that and perhaps a version of ours. */
function pathOf(address) {
  if (!address?.startsWith('file:///')) return null;
  const { pathname, search, hash } = new URL(address);
  const isPlain = hash === '' && (search === '' || search.startsWith(VERSION));
  const file = decodeURIComponent(pathname);
  return isPlain && isOwn(file) ? file : null;
}

const VERSION = '?version=';

/** Gives the modules that are imported the addresses of their versions. */
function resolve(specifier, context, next) {
  const found = next(specifier, context);
  const file = context.conditions?.includes('import') ? pathOf(found.url) : null;
  if (file === null || found.url.includes('?')) return found;
  let known = imported.get(file);
  if (known === undefined) {
    known = { stamp: stamp(file), version: 0, imports: new Set() };
    imported.set(file, known);
  }
  imported.get(pathOf(context.parentURL))?.imports.add(file);
  return known.version === 0 ? found : { ...found, url: `${found.url}${VERSION}${known.version}` };
}

/** Adds those that have loaded one of them, directly or not. */
function withDependents(changed, all, loadedBy) {
  for (let size = -1; size !== changed.size; ) {
    size = changed.size;
    for (const file of all) if (loadedBy(file).some((it) => changed.has(it))) changed.add(file);
  }
  return changed;
}

/** Forgets what has changed. To be called before a cell loads something. */
function look() {
  if (!isHooked) {
    isHooked = true;
    // Node.js 22.15 has it. Before, what is imported stays as it was.
    registerHooks?.({ resolve });
  }
  const kept = keys(Module._cache).filter(isOwn);
  for (const file of kept) if (!required.has(file)) required.set(file, stamp(file));
  const stale = new Set(kept.filter((file) => required.get(file) !== stamp(file)));
  const loadedBy = (file) => (Module._cache[file].children ?? []).map(({ filename }) => filename);
  for (const file of withDependents(stale, kept, loadedBy)) {
    required.delete(file);
    delete Module._cache[file];
  }
  const changed = new Set([...imported].filter(([file, it]) => it.stamp !== stamp(file) || stale.has(file)).map(([file]) => file));
  for (const file of withDependents(changed, imported.keys(), (it) => [...imported.get(it).imports])) {
    const known = imported.get(file);
    known.version += 1;
    known.stamp = stamp(file);
    known.imports.clear();
  }
}

/** Notes what is kept now, so that a change is seen that comes later. */
function note() {
  for (const file of keys(Module._cache)) if (isOwn(file) && !required.has(file)) required.set(file, stamp(file));
}

/** Sets the folder of the workspace. */
function setUp(workspace) {
  folder = `${workspace}/`;
}

/** A `require` that loads again what has changed. */
function loading(require) {
  const loads = function require_(id) {
    look();
    try {
      return require(id);
    } finally {
      note();
    }
  };
  defineProperty(loads, 'name', { value: 'require' });
  return assign(loads, require);
}

module.exports = { setUp, look, note, loading };
