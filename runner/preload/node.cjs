// Stops a preloaded Node.js until its program comes.
//
// Node.js requires this file by itself before it looks for the program. It requires what was asked for,
// tells the runner that it is ready, and waits. Then it takes back everything by which it could be
// noticed and returns, and Node.js goes on with the program exactly as in any other start.
//
// ISOLATOR_PRELOAD, set by the runner, has the number of the channel's descriptor, a colon, and the modules,
// separated by commas. On the channel, this file sends `ready` and the modules that the image does not have, in one line; then the
// runner sends `go` and the program's arguments, each ended by a NUL, and shuts its side. The answer is `.` if
// the program can run here; an end without an answer means that it needs a plain start. For a session the runner sends `session` and
// the path of the kernel, each ended by a NUL, and the channel stays open: it is the kernel's. If the program has a set of packages,
// `packages` and its folder come first, each ended by a NUL.

'use strict';

// Not by its name: that would load more of Node.js than a program finds.
const Module = module.constructor;

// A worker thread of the program requires this file again, and then there is nothing to do.
if (process.env.ISOLATOR_PRELOAD !== undefined) {
  const [, channel, names] = /^(\d+):(.*)$/s.exec(process.env.ISOLATOR_PRELOAD);
  delete process.env.ISOLATOR_PRELOAD;
  const rest = process.env.NODE_OPTIONS.replace(/^\S+ ?/, '');
  if (rest === '') delete process.env.NODE_OPTIONS;
  else process.env.NODE_OPTIONS = rest;
  park(Number(channel), names.split(',').filter(Boolean));
}

Object.defineProperty(process, '_preload_modules', { value: [] });
delete require.cache[__filename];
for (const [key, file] of Object.entries(Module._pathCache)) {
  if (file === __filename) delete Module._pathCache[key];
}

function park(channel, names) {
  const fs = require('node:fs');
  const missing = names.filter((name) => !preload(name));
  try {
    warmUp();
  } catch {
    // Other versions of Node.js print in another way, and load what they need when the program prints.
  }
  fs.writeSync(channel, `${['ready', ...missing].join(' ')}\n`);
  let said = Buffer.alloc(0);
  while (!/^(packages\0[^\0]*\0)?session\0[^\0]*\0$/.test(said.toString('latin1'))) {
    const chunk = Buffer.alloc(65536);
    const count = fs.readSync(channel, chunk);
    if (count === 0) break;
    said = Buffer.concat([said, chunk.subarray(0, count)]);
  }
  const words = said.toString().split('\0').slice(0, -1);
  if (words[0] === 'packages') {
    const [, folder] = words.splice(0, 2);
    // Modules are found by links in the workspace, and commands as after a plain start.
    if (process.env.PATH) process.env.PATH += `:${folder}/node_modules/.bin`;
  }
  const [go, ...args] = words;
  // Without `go` the runner has ended. And Node.js has looked for package.json before, and remembers that
  // there was none.
  if (go === undefined || fs.existsSync('package.json')) process.reallyExit(0);
  if (go === 'session') {
    becomeKernel(args[0], channel);
    fs.writeSync(channel, '.');
    return;
  }
  process.argv.push(...args);
  fs.writeSync(channel, '.');
  fs.closeSync(channel);
}

// Node.js has made up its mind already which file its program is, and looks for it next: it finds the kernel.
function becomeKernel(kernel, channel) {
  const { _findPath, _load } = Module;
  Module._findPath = (request, paths, isMain) => (isMain ? kernel : _findPath(request, paths, isMain));
  Module._load = () => {
    Object.assign(Module, { _findPath, _load });
    return _load(kernel, null, true);
  };
  process.argv[1] = kernel;
  process.argv[2] = String(channel);
}

// Looks from the root and not from the workspace: what is found for the workspace is remembered for it,
// and the program may bring modules of its own.
function preload(name) {
  const fromTheRoot = Module.createRequire('/');
  try {
    fromTheRoot.resolve(name);
  } catch (error) {
    if (error.code === 'MODULE_NOT_FOUND') return false;
    throw error;
  }
  fromTheRoot(name);
  return true;
}

// Most programs print, and Node.js loads and compiles what it prints with at the first use: half of a short
// program's time. So something is printed here on a socket that leads nowhere. Only what takes no number of
// the asynchronous operations is done, because the program's own begin where they would have.
function warmUp() {
  const loaded = process.moduleLoadList.length;
  try {
    const { Socket } = require('node:net');
    const { Console } = require('node:console');
    const nowhere = { getAsyncId: () => 0, writeUtf8String: () => 0 };
    const socket = new Socket({ handle: nowhere, readable: false, writable: true });
    socket._writeGeneric(false, '', 'utf8', () => {});
    // A corked write never completes, so no callback is called.
    socket.cork();
    new Console(socket).log('');
  } finally {
    process.moduleLoadList.length = loaded;
  }
}
