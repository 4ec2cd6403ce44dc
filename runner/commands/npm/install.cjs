// `npm install` and `npm update`: what is missing is asked for, and package.json is written as npm does it.

'use strict';

const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');

const { Refused, ask, clean } = require('./asking.cjs');
const { Failed } = require('./options.cjs');
const { FOLDER, find, nameOf, packageAt, prefix, readJson, wantedBy } = require('./tree.cjs');

// The reason why a text asks for something else than versions of a package of the registry, if it does.
function elsewhere(text) {
  const versions = text.slice(nameOf(text).length + 1);
  if (/(^|@)npm:/.test(text)) return 'gives a package another name';
  if (/^git[+:@]|^git@|@git[+:]|github:|gitlab:|bitbucket:|gist:/.test(text)) return 'is the address of a repository, and a sandbox has no network';
  if (/:\/\//.test(text)) return 'is an address, and a sandbox has no network';
  if (/^(\.|\/|~|file:|link:)/.test(text) || /^(file|link|workspace):/.test(versions)) return 'is a path: use require with the path';
  if (/\.(tgz|tar|tar\.gz)$/.test(text)) return 'is a file';
  if (/^[^@][^/]*\//.test(text) || versions.includes('/')) return 'is the address of a repository, and a sandbox has no network';
  return undefined;
}

function check(text) {
  const reason = elsewhere(text);
  if (reason) throw new Failed(`${text.length > 200 ? `${text.slice(0, 200)}…` : text} ${reason}; only packages of the registry can be installed, by name and versions`);
  return text;
}

// What npm writes into package.json for a package: what was asked for if that leaves less than `^` does, otherwise `^` and the version.
function saved(text, version, options) {
  const asked = text.slice(nameOf(text).length + 1).trim();
  if (options['save-exact'] || !/^\d/.test(version)) return version || asked || '*';
  const isNarrow = asked && !/^(\^.*|\d+(\.[xX*]){0,2}|[xX*]|v?\d+\.\d+\.\d+\S*|>=\s*[\d.]+|[A-Za-z][\w.-]*)$/.test(asked);
  return isNarrow ? asked : `^${version}`;
}

function warnOfSettings(root) {
  const isRegistry = (line) => /^\s*(@[^:=]+:)?registry\s*=/.test(line);
  let lines = [];
  try {
    lines = fs.readFileSync(path.join(root, '.npmrc'), 'utf8').split('\n');
  } catch {
    // There is none.
  }
  const names = Object.keys(process.env).filter((name) => /^npm_config_registry$/i.test(name));
  if (lines.some(isRegistry)) names.push('registry in .npmrc');
  for (const name of names) process.stderr.write(`npm warn ${name} has no effect: the operator of this server chooses the registry\n`);
}

async function install(command, parsed) {
  const { options, names } = parsed;
  if (options.help) {
    console.log('npm install [<name>[@<versions>]...] [--save-dev] [--save-exact] [--no-save] [--omit=dev]');
    return 0;
  }
  const began = Date.now();
  const root = prefix();
  const file = path.join(root, 'package.json');
  const described = readJson(file);
  const wanted = wantedBy(described, parsed);
  const isUpgrade = command === 'update';
  const whole = ([name, { versions }]) => (versions && versions !== '*' ? `${name}@${versions}` : name);
  let asked = names.map((text) => check(clean(text)));
  if (isUpgrade) asked = asked.length ? asked.map((name) => (wanted.has(name) ? whole([name, wanted.get(name)]) : name)) : [...wanted].map(whole);
  else if (!asked.length) asked = [...wanted].map(whole);
  asked = asked.map(check);
  warnOfSettings(root);
  const missing = asked.filter((text) => isUpgrade || !isThere(text, root));
  let answer = { packages: [], added: new Set() };
  if (missing.length) {
    const isTold = !options.silent && !options.quiet;
    answer = await ask([...new Set(missing)].sort(), isUpgrade, (text) => isTold && process.stderr.write(`${text}\n`)).catch(refused);
    linkInto(root, answer);
  }
  if (names.length && !isUpgrade && !options['no-save']) save(file, described, asked, answer, options, root);
  if (!options.silent) print(options, answer, Date.now() - began);
  return 0;
}

// Whether a package is there whose version certainly fits. Others are for the server to compare.
function isThere(text, root) {
  const name = nameOf(text);
  const found = find(name, root);
  const versions = text.slice(name.length + 1).replace(/^[v=]/, '');
  return Boolean(found) && ['', '*', found.version].includes(versions);
}

function refused(error) {
  if (!(error instanceof Refused)) throw error;
  throw new Failed(error.message, { code: error.kind === 'no_match' ? 'ETARGET' : undefined });
}

// Packages are linked into the workspace by the runner. A project elsewhere gets links of its own.
function linkInto(root, { packages }) {
  for (const { name, version } of packages) {
    const found = find(name, root);
    const target = found?.version === version ? undefined : placeInSet(name, version);
    // One that only another package finds, in its own folder, has no place.
    if (!target) continue;
    const place = path.join(root, FOLDER, name);
    try {
      fs.mkdirSync(path.dirname(place), { recursive: true });
      if (fs.lstatSync(place, { throwIfNoEntry: false })?.isSymbolicLink()) fs.unlinkSync(place);
      fs.symlinkSync(target, place);
    } catch (error) {
      throw new Failed(`${name} is in the set of this sandbox, but ${place} can't be made a link to it: ${error.code}`);
    }
  }
  if (packages.length && !packages.some(({ name }) => find(name, root))) {
    throw new Failed(`packages are in the workspace, where programs of ${root} do not find them: install and run there`);
  }
}

// The folder of a package in the set, or behind its link in the workspace.
function placeInSet(name, version) {
  for (const folder of ['/.isolator/packages', '/dev/shm/.isolator-packages', '/workspace', os.homedir()]) {
    const place = path.join(folder, FOLDER, name);
    if (packageAt(name, place)?.version === version) return fs.realpathSync(place);
  }
  return undefined;
}

function save(file, described, asked, { packages }, options, root) {
  const content = { ...described };
  const kind = options['save-dev'] ? 'devDependencies' : options['save-optional'] ? 'optionalDependencies' : 'dependencies';
  const entries = { ...content[kind] };
  for (const text of asked) {
    const name = nameOf(text);
    const version = find(name, root)?.version ?? packages.find((it) => it.name === name)?.version ?? '';
    entries[name] = saved(text, version, options);
    for (const other of ['dependencies', 'devDependencies', 'optionalDependencies']) {
      if (other !== kind && content[other]?.[name]) {
        content[other] = { ...content[other] };
        delete content[other][name];
      }
    }
  }
  content[kind] = Object.fromEntries(Object.entries(entries).sort(([a], [b]) => (a < b ? -1 : 1)));
  const text = `${JSON.stringify(content, null, 2)}\n`;
  try {
    if (!described || text !== fs.readFileSync(file, 'utf8')) fs.writeFileSync(file, text);
  } catch (error) {
    throw new Failed(`${file} can't be written: ${error.code}; packages are there, and --no-save leaves the file alone`);
  }
}

function print(options, { packages, added }, took) {
  const names = packages.filter(({ name }) => added.has(name));
  const count = names.length || added.size;
  const time = took >= 1000 ? `${Math.round(took / 1000)}s` : `${took}ms`;
  if (options.json) {
    console.log(JSON.stringify({ added: count, add: names }, null, 2));
  } else {
    console.log(count ? `\nadded ${count} package${count === 1 ? '' : 's'} in ${time}` : `\nup to date in ${time}`);
  }
}

module.exports = { install };
