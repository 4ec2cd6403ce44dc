// The environment of a program in a session: the variables of a module, as if all cells were `main.js` in the workspace.

'use strict';

// Not by its name: that would load more of Node.js than a program finds.
const Module = module.constructor;
const path = require('node:path');

const modules = require('./modules.cjs');
const names = require('./names.cjs');

const { process, global } = globalThis;
const { defineProperty, entries, freeze, keys } = Object;
const { apply } = Reflect;
const { then } = Promise.prototype;

/**
 * Defines the global variables. `display` shows values, `lastValue` returns what `_` is, and `runCell` is what the
 * kernel calls by way of a global name, which no other code has.
 */
function setUp({ display, lastValue, runCell }) {
  const filename = path.join(process.cwd(), 'main.js');
  const dirname = path.dirname(filename);
  const main = new Module(filename);
  main.filename = filename;
  main.paths = Module._nodeModulePaths(dirname);
  process.mainModule = main;
  process.argv = [process.argv[0], filename];
  modules.setUp(dirname);
  const require = modules.loading(Module.createRequire(filename));

  const variables = { require, module: main, exports: main.exports, __filename: filename, __dirname: dirname, display };
  for (const [name, value] of entries(variables)) {
    defineProperty(global, name, { value, writable: true, enumerable: false, configurable: true });
  }
  defineProperty(global, '_', {
    get: lastValue,
    // From then on it is the program's own.
    set: (value) => defineProperty(global, '_', { value, writable: true, enumerable: true, configurable: true }),
    enumerable: false,
    configurable: true,
  });
  // A declaration of it has no use, see rewriting.cjs.
  defineProperty(global, '\u0131', { value: undefined, writable: true, enumerable: false, configurable: false });
  // Stands for `import` in the source of cells.
  const importer = importerFor(main, require);
  importer.cell = runCell;
  defineProperty(global, '\u0131mport', { value: freeze(importer) });
}

function importerFor({ filename, paths }, require) {
  let load = (...both) => {
    // A module in the workspace has the import() that is needed. Only now, because few cells need it.
    const importing = new Module(filename);
    importing.paths = paths;
    importing._compile('module.exports = (specifier, options) => import(specifier, options);', filename);
    load = importing.exports;
    return load(...both);
  };
  const importer = (specifier, options) => {
    modules.look();
    const loading = load(specifier, options);
    apply(then, loading, [modules.note, modules.note]);
    return loading;
  };
  importer.bind = async (specifier, options, pairs) => names.bind(await importer(specifier, options), specifier, pairs);
  importer.alias = names.alias;
  importer.constant = names.constant;
  const urlOf = (file) => `file://${encodeURI(file)}`;
  importer.meta = {
    dirname: path.dirname(filename),
    filename,
    resolve: (specifier) => {
      const found = require.resolve(specifier);
      return path.isAbsolute(found) ? urlOf(found) : found;
    },
    url: urlOf(filename),
  };
  return importer;
}

/** Removes the kernel from what Node.js knows of modules. */
function hideKernel() {
  const isKernel = (file) => file.startsWith(`${__dirname}/`);
  for (const file of keys(Module._cache)) if (isKernel(file)) delete Module._cache[file];
  for (const [key, file] of entries(Module._pathCache)) if (isKernel(file)) delete Module._pathCache[key];
}

module.exports = { setUp, hideKernel };
