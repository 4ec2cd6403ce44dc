// The packages that a program of this folder finds: of the folder, of the set, and of the image.

'use strict';

const fs = require('node:fs');
const path = require('node:path');

const { clean } = require('./asking.cjs');
const { Failed } = require('./options.cjs');

const FOLDER = 'node_modules';

function readJson(file) {
  let text;
  try {
    text = fs.readFileSync(file, 'utf8');
  } catch {
    return undefined;
  }
  try {
    return JSON.parse(text.replace(/^\uFEFF/, ''));
  } catch (error) {
    throw new Failed(`Failed to parse JSON data of ${file}: ${error.message}`, { code: 'EJSONPARSE' });
  }
}

// The folder of the project: the nearest one with a package.json or packages, or the current one.
function prefix() {
  const here = process.cwd();
  for (let folder = here; path.dirname(folder) !== folder; folder = path.dirname(folder)) {
    if (fs.existsSync(path.join(folder, 'package.json')) || fs.existsSync(path.join(folder, FOLDER))) return folder;
  }
  return here;
}

// The folders in which Node.js looks for a package that is required in a folder.
function above(folder) {
  const found = [];
  for (let at = folder; ; at = path.dirname(at)) {
    if (path.basename(at) !== FOLDER) found.push(path.join(at, FOLDER));
    if (path.dirname(at) === at) return found;
  }
}

// The package in a folder, or undefined.
function packageAt(name, place) {
  try {
    const described = readJson(path.join(place, 'package.json'));
    return described && { name, version: String(described.version ?? ''), place, described };
  } catch {
    return undefined;
  }
}

// A package as it is found from a folder, or undefined.
function find(name, from) {
  for (const folder of above(from)) {
    const found = packageAt(name, path.join(folder, name));
    if (found) return { ...found, name: found.described.name ?? name };
  }
  return undefined;
}

function namesIn(folder) {
  const list = (at) => {
    try {
      return fs.readdirSync(at).filter((name) => !name.startsWith('.'));
    } catch {
      return [];
    }
  };
  return list(folder).flatMap((name) => (name.startsWith('@') ? list(path.join(folder, name)).map((inner) => `${name}/${inner}`) : [name]));
}

// All packages that are found from a folder, by their names. The nearer folder comes first.
function installed(from) {
  const found = new Map();
  for (const folder of above(from)) {
    for (const name of namesIn(folder)) {
      const it = found.has(name) ? undefined : packageAt(name, path.join(folder, name));
      if (it) found.set(name, it);
    }
  }
  return new Map([...found].sort(([a], [b]) => (a < b ? -1 : 1)));
}

// What a folder asks for, by the names of the packages: versions, and the kind.
function wantedBy(described, { options } = { options: {} }) {
  const left = [].concat(options.omit ?? []);
  const only = [].concat(options.only ?? []);
  const isProduction = options.production || left.includes('dev') || only.some((it) => /^prod/.test(it)) || process.env.NODE_ENV === 'production';
  const kept = (options.include ?? []).includes('dev');
  const kinds = ['dependencies', ...(isProduction && !kept ? [] : ['devDependencies'])];
  if (!left.includes('optional') && !options['no-optional']) kinds.push('optionalDependencies');
  const found = new Map();
  for (const kind of kinds) {
    for (const [name, versions] of Object.entries(described?.[kind] ?? {})) found.set(name, { versions: String(versions), kind });
  }
  return found;
}

function depthOf(options) {
  const depth = [].concat(options.depth ?? []).at(-1);
  if (depth === undefined) return options.all ? Infinity : 0;
  return /^\d+$/.test(depth) ? Number(depth) : Infinity;
}

// The packages below one, as far as `depth` goes. One that is above already is not repeated.
function below(it, depth, seen) {
  if (depth < 0) return [];
  const needed = { ...it.described.dependencies, ...it.described.optionalDependencies };
  const nodes = [];
  for (const [name, versions] of Object.entries(needed).sort()) {
    const found = find(name, fs.realpathSync(it.place));
    if (!found) {
      if (!Object.hasOwn(it.described.optionalDependencies ?? {}, name)) nodes.push({ name, missing: String(versions), nodes: [] });
      continue;
    }
    const isRepeated = seen.has(found.place);
    seen.add(found.place);
    nodes.push({ ...found, name, isRepeated, nodes: isRepeated ? [] : below(found, depth - 1, seen) });
  }
  return nodes;
}

function list(parsed) {
  const { options, names } = parsed;
  const root = options.global ? '/' : prefix();
  const described = options.global ? undefined : readJson(path.join(root, 'package.json'));
  const there = installed(root);
  const wanted = wantedBy(described, parsed);
  const depth = depthOf(options);
  const seen = new Set([...there.values()].map((it) => it.place));
  const nodes = [...there.values()].map((it) => ({
    ...it,
    note: it.place === path.join('/', FOLDER, it.name) && root !== '/' ? ' (of the image)' : '',
    nodes: below(it, depth - 1, seen),
  }));
  const problems = [];
  const by = described ? `${described.name ?? path.basename(root)}@${described.version ?? ''}` : root;
  for (const [name, { versions, kind }] of wanted) {
    if (there.has(name) || kind === 'optionalDependencies') continue;
    nodes.push({ name, missing: versions, nodes: [] });
    problems.push(`missing: ${name}@${versions}, required by ${by}`);
  }
  nodes.sort((a, b) => (a.name < b.name ? -1 : 1));
  const shown = names.length ? nodes.map((node) => only(node, names.map(nameOf))).filter(Boolean) : nodes;
  print(options, { root, described, shown, problems });
  if (problems.length) throw new Failed(problems.join('\n'), { code: 'ELSPROBLEMS' });
  return names.length && !shown.length ? 1 : 0;
}

// The part of a tree that leads to packages with these names.
function only(node, names) {
  const nodes = node.nodes.map((inner) => only(inner, names)).filter(Boolean);
  return nodes.length || names.includes(node.name) ? { ...node, nodes } : undefined;
}

function nameOf(text) {
  const at = text.indexOf('@', 1);
  return at < 0 ? text : text.slice(0, at);
}

function print(options, { root, described, shown, problems }) {
  if (options.silent) return;
  if (options.json) {
    const head = { ...(described?.version && { version: described.version }), ...(described?.name && { name: described.name }) };
    console.log(JSON.stringify({ ...head, ...(problems.length && { problems }), dependencies: asObject(shown) }, null, 2));
  } else if (options.parseable) {
    const places = (nodes) => nodes.flatMap((node) => [...(node.place ? [node.place] : []), ...places(node.nodes)]);
    console.log([root, ...new Set(places(shown))].map(clean).join('\n'));
  } else {
    const name = described?.name ? `${described.name}@${described.version ?? ''} ` : '';
    console.log([`${clean(name)}${clean(root)}`, ...(shown.length ? draw(shown, '') : ['└── (empty)']), ''].join('\n'));
  }
}

function asObject(nodes) {
  const one = (node) =>
    node.missing === undefined
      ? { version: node.version, overridden: false, ...(node.nodes.length && { dependencies: asObject(node.nodes) }) }
      : { required: node.missing, missing: true };
  return Object.fromEntries(nodes.map((node) => [node.name, one(node)]));
}

function draw(nodes, indent) {
  return nodes.flatMap((node, at) => {
    const isLast = at === nodes.length - 1;
    const text = node.missing === undefined ? `${node.name}@${node.version}${node.isRepeated ? ' deduped' : ''}${node.note ?? ''}` : `UNMET DEPENDENCY ${node.name}@${node.missing}`;
    const stem = `${isLast ? '└' : '├'}─${node.nodes.length ? '┬' : '─'} `;
    return [indent + stem + clean(text), ...draw(node.nodes, `${indent}${isLast ? ' ' : '│'} `)];
  });
}

function place(command, { options }) {
  const root = options.global ? '/' : prefix();
  console.log(clean(command === 'root' ? path.join(root, FOLDER) : root));
  return 0;
}

function versions() {
  const described = readJson(path.join(prefix(), 'package.json'));
  const own = described?.name ? { [described.name]: described.version } : {};
  console.log({ ...own, npm: 'of the sandbox', ...process.versions });
  return 0;
}

module.exports = { FOLDER, above, find, list, nameOf, packageAt, place, prefix, readJson, versions, wantedBy };
