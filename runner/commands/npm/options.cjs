// Options of the commands: those that do something, those that change nothing here, and those that can't be.

'use strict';

// An error of the command: npm prints it after `npm error`.
class Failed extends Error {
  constructor(message, { code, status = 1 } = {}) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

const SHORT = {
  g: 'global', D: 'save-dev', S: 'save', P: 'save-prod', O: 'save-optional', B: 'save-bundle', E: 'save-exact', f: 'force', y: 'yes',
  a: 'all', l: 'long', p: 'parseable', s: 'silent', q: 'quiet', d: 'verbose', h: 'help', w: 'workspace', v: 'version', c: 'call',
};

const REGISTRY = 'the operator of this server chooses the registry, and there is one: leave it out';
const RESOLVED = 'packages are resolved by the server with the rules of npm: leave it out';

// Options that can't be, each with the reason.
const REFUSED = {
  global: 'packages are installed for the workspace: leave it out, and run commands of packages with npx NAME',
  location: 'packages are installed for the workspace: leave it out',
  registry: REGISTRY,
  userconfig: REGISTRY,
  prefix: 'packages are installed for the current folder: change to the other one instead',
  workspace: 'workspaces of npm are not read: change to their folder instead',
  workspaces: 'workspaces of npm are not read: change to their folder instead',
  force: RESOLVED,
  'legacy-peer-deps': RESOLVED,
  'strict-peer-deps': RESOLVED,
  'install-strategy': RESOLVED,
  'global-style': RESOLVED,
  'engine-strict': RESOLVED,
  os: RESOLVED,
  cpu: RESOLVED,
  libc: RESOLVED,
  before: RESOLVED,
  tag: 'name the version as NAME@TAG instead',
  'dry-run': 'packages are resolved and installed at once: leave it out',
  'package-lock-only': 'there is no lock of this folder: leave it out',
  'save-bundle': 'nothing is packed here: leave it out',
  'save-peer': 'write it into package.json yourself',
  'no-bin-links': 'commands of packages are always there: leave it out',
};

const WITH_VALUE = new Set([
  'location', 'registry', 'userconfig', 'prefix', 'workspace', 'install-strategy', 'os', 'cpu', 'libc', 'before', 'tag', 'loglevel',
  'cache', 'omit', 'include', 'only', 'depth', 'fetch-timeout', 'fetch-retries', 'maxsockets', 'color', 'package', 'call', 'audit-level',
  'script-shell', 'save-prefix',
]);

// Options that change nothing here, because the same is done without and with them.
const WITHOUT_EFFECT = new Set([
  'audit', 'no-audit', 'fund', 'no-fund', 'loglevel', 'no-progress', 'progress', 'prefer-offline', 'prefer-online', 'prefer-dedupe', 'cache',
  'ignore-scripts', 'no-package-lock', 'foreground-scripts', 'no-update-notifier', 'update-notifier', 'unsafe-perm', 'verbose', 'yes',
  'fetch-timeout', 'fetch-retries', 'maxsockets', 'color', 'no-color', 'audit-level', 'bin-links', 'install-links', 'no-install-links',
  'save-prod', 'save',
]);

const KNOWN = {
  install: ['no-save', 'save-dev', 'save-optional', 'save-exact', 'omit', 'include', 'only', 'production', 'silent', 'quiet', 'json', 'no-optional'],
  list: ['all', 'long', 'parseable', 'json', 'depth', 'omit', 'include', 'only', 'production', 'silent', 'quiet', 'global'],
  place: ['global', 'silent', 'quiet'],
  init: ['silent', 'quiet', 'force'],
};

// Splits arguments into options, by their names, and names. A flag is `true`, and what is given several times is a list.
function parse(given, command) {
  const options = {};
  const names = [];
  const left = [...given];
  while (left.length) {
    const argument = left.shift();
    if (argument === '--') {
      names.push(...left.splice(0));
    } else if (argument.startsWith('--')) {
      const [, name, value] = /^--([^=]*)(?:=(.*))?$/s.exec(argument);
      take(options, name, value, left, command);
    } else if (argument.startsWith('-') && argument !== '-') {
      for (const letter of argument.slice(1)) take(options, SHORT[letter] ?? letter, undefined, left, command);
    } else {
      names.push(argument);
    }
  }
  return { options, names };
}

function take(options, name, value, left, command) {
  const isKnown = KNOWN[command].includes(name);
  if (!isKnown && Object.hasOwn(REFUSED, name)) throw new Failed(`--${name}: ${REFUSED[name]}`);
  if (name === 'package-lock' || name === 'save-prefix') {
    if (name === 'package-lock' && value === 'false') return;
    throw new Failed(`--${name}: there is no choice here: leave it out`);
  }
  if (!isKnown && !WITHOUT_EFFECT.has(name) && name !== 'help') throw new Failed(`Unknown option: "--${name}"`);
  if (WITH_VALUE.has(name)) {
    const given = value ?? left.shift();
    if (given === undefined) throw new Failed(`--${name} needs a value`);
    options[name] = [...(options[name] ?? []), given];
  } else {
    options[value === 'false' ? `no-${name}` : name] = true;
  }
}

module.exports = { Failed, parse };
