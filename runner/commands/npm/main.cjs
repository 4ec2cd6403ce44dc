// The commands `npm` and `npx` of a sandbox.
//
// `node main.cjs NAME ARGUMENT...`: NAME is how the command was called. It installs nothing itself: it asks the runner for a set of
// packages, through a socket (asking.cjs), and prints what the real commands print.

'use strict';

const { clean } = require('./asking.cjs');
const { Failed, parse } = require('./options.cjs');

const NO_NETWORK = 'a sandbox has no network';
const NO_LOCK = 'packages are installed by the server, which has no lock of this folder: use npm install';

// Other commands of npm, each with what can be done.
const NOT_THERE = {
  ci: NO_LOCK,
  'clean-install': NO_LOCK,
  'install-test': 'use npm install && npm test',
  view: `${NO_NETWORK}: npm install says whether a package is there`,
  info: `${NO_NETWORK}: npm install says whether a package is there`,
  show: `${NO_NETWORK}: npm install says whether a package is there`,
  search: `${NO_NETWORK}: npm install says whether a package is there`,
  outdated: `${NO_NETWORK}, so newer versions are not known: npm update gets them`,
  audit: `${NO_NETWORK}, so reports on packages are not known`,
  fund: `${NO_NETWORK}`,
  publish: `${NO_NETWORK}`,
  login: `${NO_NETWORK}`,
  adduser: `${NO_NETWORK}`,
  whoami: `${NO_NETWORK}`,
  ping: `${NO_NETWORK}`,
  uninstall: 'packages of the image and of the set of this sandbox stay; remove the entry from package.json yourself',
  prune: 'packages of the set of this sandbox stay',
  dedupe: 'packages of the set of this sandbox are never changed',
  rebuild: 'scripts of packages are not run: only packages that come ready built work',
  link: 'use require with the path of the folder',
  pack: 'nothing is packed here',
  cache: 'there is no cache in a sandbox: the server keeps the packages that it has installed',
  config: 'there is no configuration: the operator of the server chooses the registry',
  set: 'there is no configuration: the operator of the server chooses the registry',
  get: 'there is no configuration: the operator of the server chooses the registry',
  shrinkwrap: NO_LOCK,
};

const SAME = {
  __proto__: null,
  i: 'install', in: 'install', ins: 'install', inst: 'install', insta: 'install', instal: 'install', add: 'install',
  isntall: 'install', la: 'list', ll: 'list', ls: 'list', 'run-script': 'run', rum: 'run', urn: 'run', t: 'test', tst: 'test', x: 'exec',
  create: 'init', innit: 'init', up: 'update', upgrade: 'update', udpate: 'update', un: 'uninstall', unlink: 'uninstall', remove: 'uninstall',
  rm: 'uninstall', r: 'uninstall', v: 'view', s: 'search', find: 'search', ddp: 'dedupe', ln: 'link', rb: 'rebuild', it: 'install-test',
  c: 'config', 'clean-install': 'ci', ic: 'ci', 'install-clean': 'ci',
};

async function run(name, given) {
  if (name === 'npx') return require('./scripts.cjs').exec(given);
  const at = given.findIndex((argument) => !argument.startsWith('-'));
  const command = at < 0 ? undefined : SAME[given[at]] ?? given[at];
  const rest = at < 0 ? given : [...given.slice(0, at), ...given.slice(at + 1)];
  if (at < 0 && given.some((it) => it === '-v' || it === '--version')) {
    console.log('npm of the sandbox (from /.isolator/commands/npm)');
    return 0;
  }
  if (command === undefined || command === 'help') return help(command === undefined && !given.includes('--help') ? 1 : 0);
  if (Object.hasOwn(NOT_THERE, command)) throw new Failed(`npm ${command}: ${NOT_THERE[command]}`);
  switch (command) {
    case 'install':
    case 'update':
      return require('./install.cjs').install(command, parse(rest, 'install'));
    case 'list':
      return require('./tree.cjs').list(parse(rest, 'list'));
    case 'root':
    case 'prefix':
      return require('./tree.cjs').place(command, parse(rest, 'place'));
    case 'run':
      return require('./scripts.cjs').run(rest);
    case 'test':
    case 'start':
    case 'stop':
    case 'restart':
      return require('./scripts.cjs').run([command, ...rest]);
    case 'exec':
      return require('./scripts.cjs').exec(rest);
    case 'init':
      return require('./scripts.cjs').init(parse(rest, 'init'));
    case 'version':
      return require('./tree.cjs').versions();
    default:
      process.stderr.write(`Unknown command: "${clean(command)}"\n\nTo see a list of supported npm commands, run:\n  npm help\n`);
      return 1;
  }
}

function help(code) {
  console.log(`npm <command>

Usage:

npm install <name>...       install packages
npm install                 install the dependencies of package.json
npm update [<name>...]      install the newest versions that fit
npm ls                      list installed packages
npm run <name>              run a script of package.json
npm test, npm start         run this script
npm init -y                 write a package.json
npx <name>                  run a command of an installed package

This npm asks the server of the sandbox for packages, which has a registry. The sandbox itself has no network.`);
  return code;
}

// Characters that move the cursor can come from names of folders and packages, too.
function report(error) {
  if (!(error instanceof Failed)) throw error;
  const lines = [...(error.code ? [`code ${error.code}`] : []), ...clean(error.message).split('\n')];
  process.stderr.write(lines.map((line) => `npm error ${line}\n`).join(''));
  return error.status;
}

process.stdout.on('error', (error) => process.exit(error.code === 'EPIPE' ? 1 : 7));
run(process.argv[2], process.argv.slice(3)).catch(report).then((code) => {
  process.exitCode = code;
});
