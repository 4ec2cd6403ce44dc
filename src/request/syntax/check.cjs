// Says whether the program on standard input is valid JavaScript. Nothing of it runs. As Node.js does
// with a .js file, it is read as CommonJS, and as a module where only a module may be written so.

'use strict';

const fs = require('node:fs');
const vm = require('node:vm');

// By these messages about a script Node.js itself finds out that a file is a module.
const OF_MODULES = [
  'Cannot use import statement outside a module',
  "Unexpected token 'export'",
  "Cannot use 'import.meta' outside a module",
];

// With these it is a module if it is a valid one: `await` or a name of Node.js may be the reason.
const PERHAPS_OF_MODULES = [
  'await is only valid in async functions and the top level bodies of modules',
  'Unexpected reserved word',
  ...['__filename', '__dirname', 'exports', 'module', 'require'].map((n) => `Identifier '${n}' has already been declared`),
  'missing ) after argument list',
  'SyntaxError: Unexpected',
];

check(fs.readFileSync(0, 'utf8').replace(/^\uFEFF/, ''));

async function check(code) {
  const error = ofScript(code);
  let problem = error && problemOf(error.name, error.message, error.stack);
  const isOneOf = (messages) => error && messages.some((part) => `${error.name}: ${error.message}`.includes(part));
  if (isOneOf(OF_MODULES)) {
    problem = await ofModule(code);
  } else if (isOneOf(PERHAPS_OF_MODULES) && (await ofModule(code)) === undefined) {
    problem = undefined;
  }
  fs.writeSync(1, JSON.stringify(problem === undefined ? { valid: true } : { valid: false, ...problem }));
}

// The error that Node.js finds in a script.
function ofScript(code) {
  const names = ['exports', 'require', 'module', '__filename', '__dirname'];
  try {
    vm.compileFunction(code, names, { filename: 'main.js' });
  } catch (error) {
    return error;
  }
}

// A module is compiled before what it imports is looked for, and runs only when all of that was found. So
// one that imports what is nowhere is compiled, and no more.
async function ofModule(code) {
  const source = `import 'isolator:nowhere';${code.replace(/^#!/, '//')}`;
  try {
    await import(`data:text/javascript;base64,${Buffer.from(source).toString('base64')}`);
  } catch (error) {
    if (error instanceof SyntaxError || error instanceof RangeError) return placeInModule(code, error);
  }
}

// Only a separate Node.js process reports the place of an error in a module.
function placeInModule(code, { name, message }) {
  const { spawnSync } = require('node:child_process');
  fs.writeFileSync('main.mjs', code);
  const options = { encoding: 'utf8', maxBuffer: 64 << 20, stdio: ['ignore', 'ignore', 'pipe'] };
  const { status, stderr } = spawnSync(process.execPath, ['--check', 'main.mjs'], options);
  // An imported module may have a syntax error, too.
  return status === 0 ? undefined : problemOf(name, message, stderr);
}

// The output of Node.js begins with the file and the line, the line's text, and a mark below the place.
function problemOf(name, message, printed) {
  const error = name === 'SyntaxError' ? message : `${name}: ${message}`;
  const [place, , mark = ''] = String(printed).split('\n', 3);
  const line = Number(/main\.m?js:(\d+)$/.exec(place)?.[1]);
  const found = { error: error.toWellFormed?.() ?? error };
  if (line > 0) {
    found.line = line;
    // There is nothing to mark where the end came too soon.
    if (/^\s*\^*$/.test(mark) && mark !== '') found.offset = mark.search(/\^|$/) + 1;
  }
  return found;
}
