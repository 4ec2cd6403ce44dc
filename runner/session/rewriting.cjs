// Rewrites the source of a cell for what V8 does not do in a debugger's console.
//
// - A variable can be declared again in any way. V8 has a place for each name of the console: a property of the global
//   object for `var` and `function`, and a slot for `let`, `const` and `class`. Neither can be removed, and a name can't
//   have both. So a declaration of a name that has the other place becomes an assignment there.
// - A slot of `const` could only become another one of `const`. So all are `let`, and what would assign to one that was
//   declared with `const` throws the error, except for code of `eval`, `new Function` and `with`, where that is not known.
// - Imports come first, and their names follow the module's. See names.cjs for how names are bound.
// - Exports are declarations, because a cell can't be imported.
//
// What can stay where it is stays there. Where something was moved, the edits know where it was.

'use strict';

const { Edits } = require('./edits.cjs');
const { namesOf, variables, walk } = require('./scopes.cjs');

const { Map, Set } = globalThis;
const { stringify } = JSON;

/** A function that stands for `import`. As long as that, so that columns stay as they are. */
const IMPORTER = '\u0131mport';

/** A variable with no use: a declaration has no value, so the value of the cell stays that of the code before it. */
const NOTHING = 'var \u0131 =';

/** The words before what is exported, perhaps with comments between them. */
const EXPORT_DEFAULT = /^export(\s|\/\*(?:(?!\*\/)[^])*\*\/|\/\/.*[\n\r\u2028\u2029])*default/;

/** Blanks, but the same lines. */
const blank = (text) => text.replace(/[^\n]/g, ' ');

/** What the parser knows of a name that is written as a text. */
const nameOf = (node) => (node.type === 'Literal' ? node.value : node.name);

/**
 * Rewrites a program. `names` knows those of the session. The variables in `anew` have no value when it begins, though
 * they may have had one before. Returns the text with its changes, and the names that it declares.
 */
function rewrite(code, tree, names, anew) {
  return new Rewriting(code, tree, names, anew).run();
}

class Rewriting {
  #code;
  #tree;
  #names;
  #edits;
  #declared = { variables: new Set(), properties: new Set(), slots: new Set(), constants: new Set() };
  /** Comes before everything else: functions, slots and imports. */
  #functions = new Map();
  #slots = new Set();
  #imports = [];
  #aliases = [];
  #anew;

  constructor(code, tree, names, anew) {
    this.#code = code;
    this.#tree = tree;
    this.#names = names;
    this.#anew = anew;
    this.#edits = new Edits(code);
  }

  run() {
    const { body } = this.#tree;
    for (const node of body) this.#statement(node);
    for (const node of body) {
      variables(node, (it, place, block) => {
        if (it.type === 'VariableDeclaration') this.#variable(it, place);
        else if (it.type === 'FunctionDeclaration') this.#inBlock(it, block);
      });
    }
    const { constants } = this.#declared;
    const isConstant = ({ name }) => constants.has(name) || (this.#names.isConstant(name) && !this.#isDeclared(name));
    if (this.#code.includes('import') || constants.size > 0 || this.#names.hasConstants()) {
      walk(
        this.#tree,
        (node) => this.#importing(node),
        (node, isShort) => isConstant(node) && this.#assigning(node, isShort),
      );
    }
    this.#surround();
    return { edited: this.#edits.apply(), declared: this.#declared };
  }

  #isDeclared(name) {
    const { variables: ofVar, properties, slots } = this.#declared;
    return ofVar.has(name) || properties.has(name) || slots.has(name);
  }

  /** A statement of the cell itself, in no other. */
  #statement(node) {
    switch (node.type) {
      case 'VariableDeclaration':
        if (node.kind !== 'var') this.#lexical(node);
        break;
      case 'ClassDeclaration':
        this.#class(node);
        break;
      case 'FunctionDeclaration':
        this.#function(node);
        break;
      case 'LabeledStatement':
        // A function can have a label.
        this.#statement(node.body);
        break;
      case 'ImportDeclaration':
        this.#import(node);
        break;
      case 'ExportNamedDeclaration':
      case 'ExportDefaultDeclaration':
      case 'ExportAllDeclaration':
        this.#export(node);
        break;
      default: // It declares nothing, or only with `var`.
    }
  }

  // --- Declarations ---

  /** `let`, `const`, `using` and `await using`. */
  #lexical(node) {
    const found = node.declarations.flatMap(({ id }) => namesOf(id));
    if (node.kind !== 'let') for (const name of found) this.#declared.constants.add(name);
    const fixed = found.filter((name) => this.#names.isProperty(name));
    for (const name of found) {
      if (fixed.includes(name)) this.#declared.properties.add(name);
      else this.#declared.slots.add(name);
    }
    const end = node.start + node.kind.length;
    if (fixed.length === 0) {
      if (node.kind !== 'let') this.#replace(node.start, end, 'let'.padEnd(node.kind.length));
      return;
    }
    for (const name of found) if (!fixed.includes(name)) this.#slots.add(name);
    this.#assign(node, end);
  }

  /** Makes a declaration an assignment. Its keyword ends at `end`. */
  #assign({ start, declarations }, end) {
    this.#replace(start, end, `${NOTHING} void (`);
    for (const { id, init } of declarations) {
      if (init === null) this.#edits.insert(id.end, ' = void 0');
    }
    this.#edits.insert(declarations.at(-1).end, ')');
  }

  #class({ id, start, end }) {
    if (!this.#names.isProperty(id.name)) {
      this.#declared.slots.add(id.name);
      return;
    }
    this.#declared.properties.add(id.name);
    this.#edits.insert(start, `${NOTHING} void (${id.name} = `);
    this.#edits.insert(end, ');');
  }

  #function(node) {
    const { name } = node.id;
    if (!this.#names.isSlot(name)) {
      this.#declared.properties.add(name);
      return;
    }
    this.#declared.slots.add(name);
    // Of several with a name the last one counts.
    this.#functions.set(name, this.#functionTo(node));
    this.#replace(node.start, node.end, ';');
  }

  /** The declaration of a function as an assignment. Its own name would be another variable. */
  #functionTo({ id, start, end }) {
    return [`${id.name} = `, { start, end: id.start }, { start: id.end, end }];
  }

  /** A declaration with `var`. */
  #variable(node, place) {
    const found = node.declarations.flatMap(({ id }) => namesOf(id));
    const inSlots = found.filter((name) => this.#names.isSlot(name));
    for (const name of found) this.#declared.variables.add(name);
    if (inSlots.length === 0) return;
    // An error has ended the code that would have given it a value.
    for (const name of inSlots) if (!this.#names.hasValue(name)) this.#slots.add(name);
    const end = node.start + 'var'.length;
    if (place === null) {
      this.#replace(node.start, end, `${NOTHING} void (`);
      this.#edits.insert(node.declarations.at(-1).end, ')');
    } else {
      this.#replace(node.start, end, ' '.repeat('var'.length));
      const [{ id }] = node.declarations;
      // `for (async of` would begin an arrow function.
      if (id.name === 'async') {
        this.#edits.insert(id.start, '(');
        this.#edits.insert(id.end, ')');
      }
    }
    // Without a value, it keeps the one that it has.
  }

  /** A function that is declared in a block is a variable of the cell, too. */
  #inBlock(node, block) {
    const { id, async, generator } = node;
    if (async || generator || this.#isStrict()) return;
    const { name } = id;
    this.#declared.variables.add(name);
    if (!this.#names.isSlot(name)) return;
    if (!this.#names.hasValue(name)) this.#slots.add(name);
    const [first] = block.type === 'SwitchCase' ? block.consequent : block.body;
    this.#edits.insert(first.start, `${NOTHING} void (`, ...this.#functionTo(node), ');');
    this.#replace(node.start, node.end, ';');
  }

  #isStrict() {
    return this.#tree.body.some(({ directive }) => directive === 'use strict');
  }

  /** Something is assigned to a constant. */
  #assigning({ name, start, end }, isShort) {
    const target = `${IMPORTER}.constant("${name}", ${name}, (\u0131) => ${name} = \u0131).value`;
    this.#edits.replace(start, end, isShort ? `${name}: ${target}` : target);
  }

  // --- Imports and exports ---

  /** import() and import.meta. */
  #importing(node) {
    if (node.type === 'ImportExpression' || (node.type === 'MetaProperty' && node.meta.name === 'import')) {
      this.#edits.replace(node.start, node.start + 'import'.length, IMPORTER);
    }
  }

  #import(node) {
    const pairs = node.specifiers.map((it) => {
      if (it.type === 'ImportNamespaceSpecifier') return ['*', it.local.name];
      return [it.type === 'ImportDefaultSpecifier' ? 'default' : nameOf(it.imported), it.local.name];
    });
    this.#load(node, pairs);
  }

  /** Loads a module for names of the session: pairs of its name in the module and here. */
  #load(node, pairs) {
    const { source, attributes } = node;
    const with_ = (attributes ?? []).map(({ key, value }) => `${stringify(nameOf(key))}: ${value.raw}`);
    const options = with_.length > 0 ? `{ with: { ${with_.join(', ')} } }` : 'undefined';
    this.#imports.push({ start: node.start, call: `await ${IMPORTER}.bind(${source.raw}, ${options}, ${stringify(pairs)})` });
    this.#replace(node.start, node.end, ';');
  }

  #export(node) {
    const { declaration, source, specifiers, exported } = node;
    if (node.type === 'ExportAllDeclaration') {
      this.#load(node, [exported ? ['*', nameOf(exported)] : ['**', '']]);
    } else if (node.type === 'ExportDefaultDeclaration') {
      this.#exportDefault(node);
    } else if (source) {
      this.#load(node, specifiers.map((it) => [nameOf(it.local), nameOf(it.exported)]));
    } else if (declaration) {
      this.#replace(node.start, declaration.start, '');
      this.#statement(declaration);
    } else {
      for (const { local, exported: alias } of specifiers) {
        if (nameOf(alias) !== local.name) this.#aliases.push(`${stringify(nameOf(alias))}: () => ${local.name}`);
      }
      this.#replace(node.start, node.end, ';');
    }
  }

  /** What has no name is a value, whose name is `default` as in a module. */
  #exportDefault({ start, end, declaration }) {
    if (declaration.id && /Declaration$/.test(declaration.type)) {
      this.#replace(start, declaration.start, '');
      this.#statement(declaration);
      return;
    }
    const isNameless = /^(Function|ArrowFunction|Class)/.test(declaration.type) && !declaration.id;
    // What is in brackets begins before its node.
    const begin = start + EXPORT_DEFAULT.exec(this.#code.slice(start, end))[0].length;
    const isEnded = this.#code[end - 1] === ';';
    this.#replace(start, begin, ';');
    this.#edits.insert(begin, isNameless ? '({ default: ' : '(');
    this.#edits.insert(isEnded ? end - 1 : end, `${isNameless ? ' }).default' : ')'}${isEnded ? '' : ';'}`);
  }

  /** What comes before the first statement that is more than a directive, and after the last one. */
  #surround() {
    const { body } = this.#tree;
    const first = body.find(({ directive }) => directive === undefined);
    if (first === undefined) return;
    const parts = [];
    if (this.#slots.size > 0) parts.push(`let ${[...this.#slots].join(', ')};`);
    const functions = [...this.#functions.values()].flatMap((one, index) => (index > 0 ? [', ', ...one] : one));
    if (functions.length > 0) parts.push('let ', ...functions, ';');
    for (const name of this.#anew) parts.push(`${name} = undefined;`);
    for (const { start, call } of this.#imports) parts.push({ text: `${NOTHING} ${call};`, from: start });
    this.#edits.insertFirst(first.start, ...parts);
    if (this.#aliases.length === 0) return;
    this.#edits.insert(this.#code.length, `\n;${NOTHING} ${IMPORTER}.alias({ ${this.#aliases.join(', ')} });`);
  }

  /** Replaces a range by a text, and by blanks where that is shorter. */
  #replace(start, end, text) {
    this.#edits.replace(start, end, text + blank(this.#code.slice(start, end)).slice(text.length));
  }
}

module.exports = { rewrite, IMPORTER };
