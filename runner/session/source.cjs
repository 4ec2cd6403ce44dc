// Rewrites the syntax in the source of cells that V8 can't evaluate there.

'use strict';

const { Script } = require('node:vm');

/** A function that stands for `import`. As long as that, so that columns stay as they are. */
const IMPORTER = '\u0131mport';

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
let walk;

/** Blanks, but the same number of lines. */
const lines = (text) => text.replace(/[^\n]/g, '');
const blank = (text) => text.replace(/[^\n]/g, ' ');

/**
 * Replaces import() and import.meta, and import and export declarations. Code that can't be parsed stays as it is: V8
 * tells best what is wrong with it.
 */
function withoutImports(code) {
  acorn ??= ofNode('acorn/acorn/dist/acorn');
  walk ??= ofNode('acorn/acorn-walk/dist/walk');
  let tree;
  try {
    tree = acorn.parse(code, {
      ecmaVersion: 'latest',
      sourceType: 'script',
      allowHashBang: true,
      allowAwaitOutsideFunction: true,
      allowImportExportEverywhere: true,
    });
  } catch {
    return code;
  }
  const edits = [];
  const replace = ({ start, end }, text) => edits.push({ start, end, text });
  const textOf = ({ start, end }) => code.slice(start, end);
  const nameOf = (node) => (node.type === 'Literal' ? node.value : node.name);

  walk.full(tree, (node) => {
    if (node.type === 'ImportExpression' || (node.type === 'MetaProperty' && node.meta.name === 'import')) {
      replace({ start: node.start, end: node.start + 'import'.length }, IMPORTER);
    }
  });
  for (const node of tree.body) {
    if (node.type === 'ImportDeclaration') replace(node, importing(node) + lines(textOf(node)));
    else if (node.type.startsWith('Export')) exporting(node);
  }
  return apply(code, edits);

  /** The declaration as an expression that waits for the module. */
  function importing({ specifiers, source, attributes }) {
    const module = argumentsFor(source, attributes);
    const all = specifiers.find((it) => it.type === 'ImportNamespaceSpecifier');
    const named = specifiers.filter((it) => it !== all);
    const pairs = named.map((it) => {
      const name = it.type === 'ImportDefaultSpecifier' ? 'default' : nameOf(it.imported);
      return [JSON.stringify(name), it.local.name];
    });
    const names = pairs.map(([name]) => name).join(', ');
    const pattern = `{ ${pairs.map((pair) => pair.join(': ')).join(', ')} }`;
    if (all === undefined && named.length === 0) return `void await ${IMPORTER}(${module});`;
    if (all === undefined) return `const ${pattern} = await ${IMPORTER}.names([${names}], ${module});`;
    const space = `const ${all.local.name} = await ${IMPORTER}(${module})`;
    return named.length === 0 ? `${space};` : `${space}, ${pattern} = ${all.local.name};`;
  }

  function argumentsFor(source, attributes) {
    if (!attributes?.length) return source.raw;
    const pairs = attributes.map(({ key, value }) => `${JSON.stringify(nameOf(key))}: ${value.raw}`);
    return `${source.raw}, { with: { ${pairs.join(', ')} } }`;
  }

  /** Exports become plain declarations: a cell can't be imported. */
  function exporting(node) {
    const { declaration, source } = node;
    if (source) {
      replace(node, `void await ${IMPORTER}(${argumentsFor(source, node.attributes)});${lines(textOf(node))}`);
    } else if (!declaration) {
      replace(node, blank(textOf(node)));
    } else {
      const before = { start: node.start, end: declaration.start };
      const isNameless = /^(Function|Class)Declaration$/.test(declaration.type) && !declaration.id;
      replace(before, (isNameless ? '(' : ' ') + blank(textOf(before)).slice(1));
      if (isNameless) replace({ start: declaration.end, end: declaration.end }, ')');
    }
  }
}

function apply(code, edits) {
  edits.sort((a, b) => a.start - b.start);
  let text = '';
  let at = 0;
  for (const { start, end, text: by } of edits) {
    text += code.slice(at, start) + by;
    at = end;
  }
  return text + code.slice(at);
}

/** Removes the types, and translates what is more than a type, such as an enum. `name` is the cell's, for errors. */
function withoutTypes(code, name) {
  const { stripTypeScriptTypes } = require('node:module');
  if (stripTypeScriptTypes === undefined) {
    throw new SyntaxError(`TypeScript needs Node.js 22.13 or newer, and this is ${process.version}`);
  }
  // It warns that it is experimental.
  const { emitWarning } = process;
  process.emitWarning = () => {};
  try {
    return stripTypeScriptTypes(code);
  } catch (error) {
    if (error.code !== 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') throw namingTheCell(error, name);
    return stripTypeScriptTypes(code, { mode: 'transform' });
  } finally {
    process.emitWarning = emitWarning;
  }
}

/** The error of a code that has no name for Node.js: before the line it writes only a colon. */
function namingTheCell({ message, stack }, name) {
  const error = new SyntaxError(message);
  const [before] = stack.split('\n\n', 1);
  error.stack = before.startsWith(':') ? `${name}${before}\n\n${error}` : `${error}`;
  return error;
}

module.exports = { withoutImports, withoutTypes };
