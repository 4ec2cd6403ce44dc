// `npm run`, `npm test`, `npx` and `npm init`: scripts of package.json, and commands of packages that are there.

'use strict';

const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { spawnSync } = require('node:child_process');

const { clean } = require('./asking.cjs');
const { Failed } = require('./options.cjs');
const { FOLDER, above, find, nameOf, prefix, readJson } = require('./tree.cjs');

const LIFECYCLE = ['test', 'start', 'stop', 'restart', 'prepare', 'prepublish', 'version', 'install', 'preinstall', 'postinstall'];

function project() {
  const root = prefix();
  const file = path.join(root, 'package.json');
  const described = readJson(file);
  if (!described) {
    const message = `Could not read package.json: Error: ENOENT: no such file or directory, open '${file}'`;
    throw new Failed(message, { code: 'ENOENT', status: 254 });
  }
  return { root, described, label: `${described.name ?? ''}${described.version ? `@${described.version}` : ''}` };
}

// The folders with commands of packages, from a folder upwards.
function commandFolders(from) {
  return above(from).map((folder) => path.join(folder, '.bin'));
}

function quoted(argument) {
  return /^[\w@%+=:,./-]+$/.test(argument) ? argument : `'${argument.replaceAll("'", `'\\''`)}'`;
}

function ended(result) {
  if (result.error) throw new Failed(`${result.error.path ?? 'sh'}: ${result.error.code}`, { status: 127 });
  return result.status ?? 128 + os.constants.signals[result.signal];
}

function run(given) {
  const at = given.findIndex((argument) => !argument.startsWith('-'));
  const flags = at < 0 ? given : given.slice(0, at);
  const after = at < 0 ? [] : given.slice(at + 1);
  const isFlag = (it) => /^(-s|--silent|--if-present|--foreground-scripts|--quiet|-q)$/.test(it);
  const others = flags.filter((it) => !isFlag(it));
  if (others.length) throw new Failed(`Unknown option: "${others[0]}"`);
  const split = after.indexOf('--');
  const own = split < 0 ? after : after.slice(0, split);
  const all = [...flags, ...own.filter((it) => it.startsWith('-'))];
  const args = [...own.filter((it) => !it.startsWith('-')), ...(split < 0 ? [] : after.slice(split + 1))];
  const isSilent = all.some((it) => /^(-s|--silent)$/.test(it));
  const { root, described, label } = project();
  const scripts = described.scripts ?? {};
  if (at < 0) return listScripts(scripts, label);
  const name = given[at];
  if (!Object.hasOwn(scripts, name) && !(name === 'start' && fs.existsSync(path.join(root, 'server.js')))) {
    if (all.includes('--if-present')) return 0;
    throw new Failed(`Missing script: "${name}"\n\nTo see a list of scripts, run:\n  npm run`);
  }
  const variables = {
    ...process.env,
    PATH: [...commandFolders(root), process.env.PATH].join(path.delimiter),
    INIT_CWD: process.cwd(),
    npm_package_name: described.name ?? '',
    npm_package_version: described.version ?? '',
    npm_package_json: path.join(root, 'package.json'),
    npm_node_execpath: process.execPath,
  };
  for (const event of [`pre${name}`, name, `post${name}`]) {
    const script = scripts[event] ?? (event === 'start' ? 'node server.js' : undefined);
    if (script === undefined) continue;
    const line = [script, ...(event === name ? args.map(quoted) : [])].join(' ');
    if (!isSilent) process.stdout.write(`\n> ${clean(label)}${label ? ' ' : ''}${clean(event)}\n> ${clean(line)}\n\n`);
    const env = { ...variables, npm_lifecycle_event: event, npm_lifecycle_script: script };
    const code = ended(spawnSync('sh', ['-c', line], { cwd: root, env, stdio: 'inherit' }));
    if (code) return code;
  }
  return 0;
}

function listScripts(scripts, label) {
  const names = Object.keys(scripts);
  const isLifecycle = (name) => LIFECYCLE.includes(name.replace(/^(pre|post)/, '')) || LIFECYCLE.includes(name);
  const part = (chosen) => chosen.map((name) => `  ${clean(name)}\n    ${clean(scripts[name])}\n`).join('');
  const [first, rest] = [names.filter(isLifecycle), names.filter((name) => !isLifecycle(name))];
  const head = label ? ` in ${clean(label)}` : '';
  if (first.length) process.stdout.write(`Lifecycle scripts included${head}:\n${part(first)}`);
  if (rest.length) process.stdout.write(`${first.length ? 'available via `npm run`' : `Scripts available${head} via \`npm run\``}:\n${part(rest)}`);
  return 0;
}

function exec(given) {
  const left = [...given];
  while (left.length && left[0].startsWith('-')) {
    const flag = left.shift();
    if (flag === '--') break;
    if (flag === '--version' || flag === '-v') {
      console.log('npx of the sandbox (from /.isolator/commands/npm)');
      return 0;
    }
    if (/^(--yes|-y|--no|--no-install|--offline|--prefer-offline|--quiet|-q|--silent|-s)$/.test(flag)) continue;
    throw new Failed(`npx ${flag}: only commands of installed packages are run, by their names: leave it out`);
  }
  if (!left.length) throw new Failed('npx needs the name of a command: npx NAME');
  const [first, ...args] = left;
  const name = nameOf(first);
  const program = commandOf(name, prefix());
  if (!program) throw new Failed(`npx: no installed package has the command '${name}': run npm install with the package first`);
  const isOther = name !== first && !['latest', program.version].includes(first.slice(name.length + 1));
  if (isOther) throw new Failed(`npx: '${name}' is there in version ${program.version ?? 'unknown'}: run npm install ${first} first`);
  const env = { ...process.env, PATH: [...commandFolders(prefix()), process.env.PATH].join(path.delimiter) };
  return ended(spawnSync(program.path, args, { env, stdio: 'inherit' }));
}

// The program of a command: one that the packages of a folder have, or that of the package with this name.
function commandOf(name, root) {
  if (name.includes('..')) return undefined;
  const found = find(name, root);
  for (const folder of found ? [] : commandFolders(root)) {
    if (!name.includes('/') && fs.existsSync(path.join(folder, name))) return { path: path.join(folder, name) };
  }
  if (found) {
    const { bin } = found.described;
    const short = name.replace(/^@[^/]*\//, '');
    const file = typeof bin === 'string' ? bin : bin?.[short] ?? Object.values(bin ?? {})[0];
    return file === undefined ? undefined : { path: path.join(found.place, file), version: found.version };
  }
  // Commands of the set are in the path.
  const folders = (process.env.PATH ?? '').split(path.delimiter).filter((folder) => folder.endsWith(`${FOLDER}/.bin`));
  const folder = folders.find((it) => !name.includes('/') && fs.existsSync(path.join(it, name)));
  return folder && { path: path.join(folder, name) };
}

function init({ options, names }) {
  if (names.length) throw new Failed('npm init runs a package that it would download: write package.json with npm init -y');
  if (!options.yes && !options.force) throw new Failed('npm init asks questions, and nobody answers here: use npm init -y');
  const root = process.cwd();
  const file = path.join(root, 'package.json');
  const before = readJson(file) ?? {};
  const name = path.basename(root).toLowerCase().replace(/[^a-z0-9._~-]/g, '-') || 'workspace';
  const scripts = { test: 'echo "Error: no test specified" && exit 1' };
  const content = { name, version: '1.0.0', main: 'index.js', scripts, keywords: [], author: '', license: 'ISC', description: '', ...before };
  const text = JSON.stringify(content, null, 2);
  fs.writeFileSync(file, `${text}\n`);
  if (!options.silent) console.log(`Wrote to ${clean(file)}:\n\n${text}\n\n`);
  return 0;
}

module.exports = { exec, init, run };
