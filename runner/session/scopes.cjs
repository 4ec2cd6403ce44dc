// Names in the syntax tree of a cell: which it declares, and which of its assignments are to variables of the session.

'use strict';

const { Set } = globalThis;
const { isArray } = Array;

/** The identifiers that a pattern binds. */
function bound(pattern, into = []) {
  if (pattern === null) return into;
  switch (pattern.type) {
    case 'Identifier':
      into.push(pattern);
      break;
    case 'ObjectPattern':
      for (const it of pattern.properties) bound(it.type === 'RestElement' ? it.argument : it.value, into);
      break;
    case 'ArrayPattern':
      for (const it of pattern.elements) bound(it, into);
      break;
    case 'AssignmentPattern':
      bound(pattern.left, into);
      break;
    case 'RestElement':
      bound(pattern.argument, into);
      break;
    default: // A property, which is no name.
  }
  return into;
}

const namesOf = (pattern) => bound(pattern).map(({ name }) => name);

/** A statement without its labels. */
function unlabelled(statement) {
  let it = statement;
  while (it.type === 'LabeledStatement') it = it.body;
  return it;
}

const isFunction = (node) => /^(FunctionDeclaration|FunctionExpression|ArrowFunctionExpression)$/.test(node.type);

/** The names that the statements of a block declare for it alone. */
function lexicals(statements, into) {
  for (const it of statements.map(unlabelled)) {
    if (it.type === 'VariableDeclaration' && it.kind !== 'var') {
      for (const { id } of it.declarations) for (const name of namesOf(id)) into.add(name);
    } else if (/^(Function|Class)Declaration$/.test(it.type) && it.id) {
      into.add(it.id.name);
    }
  }
  return into;
}

/**
 * Calls `found` for each declaration with `var` in a statement that belongs to the function around it, and for each
 * function that is declared in a block. `place` is the part of a `for` that the declaration is; `block` the block.
 */
function variables(node, found, block = null, place = null) {
  if (!node) return;
  const inside = (it, its = block) => variables(it, found, its);
  switch (node.type) {
    case 'VariableDeclaration':
      if (node.kind === 'var') found(node, place, block);
      break;
    case 'FunctionDeclaration':
      if (block !== null) found(node, null, block);
      break;
    case 'IfStatement':
      inside(node.consequent);
      inside(node.alternate);
      break;
    case 'ForStatement':
      variables(node.init, found, block, 'init');
      inside(node.body);
      break;
    case 'ForInStatement':
    case 'ForOfStatement':
      variables(node.left, found, block, 'left');
      inside(node.body);
      break;
    case 'WhileStatement':
    case 'DoWhileStatement':
    case 'WithStatement':
    case 'LabeledStatement':
      inside(node.body);
      break;
    case 'BlockStatement':
      for (const it of node.body) inside(it, node);
      break;
    case 'TryStatement':
      inside(node.block);
      inside(node.handler?.body);
      inside(node.finalizer);
      break;
    case 'SwitchStatement':
      for (const one of node.cases) for (const it of one.consequent) inside(it, one);
      break;
    case 'ExportNamedDeclaration':
      inside(node.declaration);
      break;
    default: // No statement with others in it.
  }
}

/** The names that the body of a function declares: its variables, and those of its block. */
function ofBody(statements) {
  const names = lexicals(statements, new Set());
  for (const it of statements) {
    variables(it, ({ type, id, declarations }) => {
      if (type === 'FunctionDeclaration') names.add(id.name);
      else for (const one of declarations) for (const name of namesOf(one.id)) names.add(name);
    });
  }
  return names;
}

/** All names: which of them are properties of the object of a `with` is not known before it runs. */
const ANY = { has: () => true };

/** The names that a node declares for what is in it. */
function declaredBy(node, parent) {
  if (isFunction(node)) {
    const names = new Set(node.params.flatMap(namesOf));
    if (node.type === 'FunctionExpression' && node.id) names.add(node.id.name);
    return names;
  }
  switch (node.type) {
    case 'StaticBlock':
      return ofBody(node.body);
    case 'WithStatement':
      return ANY;
    case 'ClassDeclaration':
    case 'ClassExpression':
      return new Set(node.id ? [node.id.name] : []);
    case 'BlockStatement':
      // The defaults of parameters don't see what is in the body.
      return parent !== null && isFunction(parent) ? ofBody(node.body) : lexicals(node.body, new Set());
    case 'SwitchStatement':
      return lexicals(node.cases.flatMap((it) => it.consequent), new Set());
    case 'ForStatement':
      return lexicals(node.init ? [node.init] : [], new Set());
    case 'ForInStatement':
    case 'ForOfStatement':
      return lexicals([node.left], new Set());
    case 'CatchClause':
      return new Set(namesOf(node.param));
    default:
      return null;
  }
}

/** The pattern to which a node assigns. */
function targetOf(node) {
  switch (node.type) {
    case 'AssignmentExpression':
      return node.left;
    case 'UpdateExpression':
      return node.argument;
    case 'ForInStatement':
    case 'ForOfStatement':
      return node.left.type === 'VariableDeclaration' ? null : node.left;
    default:
      return null;
  }
}

/** The names in a pattern of the form `{ name }`. */
function shorthands(pattern, into) {
  if (pattern?.type === 'ObjectPattern') {
    for (const it of pattern.properties) {
      if (it.shorthand) into.add(it.value.type === 'AssignmentPattern' ? it.value.left : it.value);
      shorthands(it.value ?? it.argument, into);
    }
  } else if (pattern?.type === 'ArrayPattern') {
    for (const it of pattern.elements) shorthands(it, into);
  } else if (pattern?.type === 'AssignmentPattern') {
    shorthands(pattern.left, into);
  } else if (pattern?.type === 'RestElement') {
    shorthands(pattern.argument, into);
  }
  return into;
}

/**
 * Calls `onNode` for each node, and `onTarget` for each identifier that is assigned to and that no function or block
 * declares: it is a variable of the session. The second argument of that says whether it is written as `{ name }`.
 */
function walk(tree, onNode, onTarget) {
  const visit = (node, scope, parent) => {
    onNode(node);
    const names = declaredBy(node, parent);
    const inside = names === null ? scope : { names, outer: scope };
    const target = targetOf(node);
    if (target !== null) {
      const short = shorthands(target, new Set());
      for (const it of bound(target)) if (!isDeclared(it.name, scope)) onTarget(it, short.has(it));
    }
    for (const key in node) {
      const value = node[key];
      if (isArray(value)) {
        for (const it of value) if (it?.type) visit(it, inside, node);
      } else if (value?.type) {
        visit(value, inside, node);
      }
    }
  };
  for (const it of tree.body) visit(it, null, null);
}

function isDeclared(name, scope) {
  for (let it = scope; it !== null; it = it.outer) if (it.names.has(name)) return true;
  return false;
}

module.exports = { namesOf, variables, walk };
