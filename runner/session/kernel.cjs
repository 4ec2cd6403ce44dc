// Runs the cells of a session in Node.js.
//
// `node kernel.cjs CHANNEL`: CHANNEL is the number of a descriptor, a Unix stream socket to the runner. A message is
// one byte of kind, four bytes of length (big endian), and the payload. The first one (`H`) brings another such socket,
// which takes its place: children inherit CHANNEL, and they don't inherit what came in a message. The runner sends cells
// (`C`), lets their code run (`G`), asks for the names that the end of a text may become (`Q`), and ends the process by
// closing its end. The kernel answers with `r` (ready), `s` (the code of a cell can run), `d` (something to show), `e` (the
// end of a cell) and `q` (names).
//
// Rules of cells:
// - It is evaluated as V8 evaluates the input of a debugger's console. So variables live on, and `await` works at the top
//   level. What V8 can't do there, rewriting.cjs rewrites.
// - The value of the last expression is shown, unless it is undefined. If it is a promise, the cell ends when that is
//   settled, and its value is shown: programs often end with a call of their asynchronous main function.
// - When the code has ended, the cell waits for the timers, requests and child processes that it has started, for at
//   most a second, because a program on its own would not end before them either. It does not wait for servers and
//   watchers, nor after an error. The rest goes on while the next cells run.
// - A cell that waits for a promise that nothing can settle anymore fails at once.
// - process.exit() ends the cell and not the session. Functions for the event `exit` are never called.
// - An interruption can't take back what the cell waits for: if that is settled later, the code behind it runs.
// - require() and import load files of the workspace again that have changed, see modules.cjs.
// - A function for SIGINT is called by an interruption between cells or in an await, which ends the cell all the same.
// - The module `domain`, and `repl`, which needs it, can't be loaded: the kernel takes uncaught errors.
//
// A cell may replace what every program can reach, such as Buffer.from. So the kernel takes what it needs beforehand.

'use strict';

const fs = require('node:fs');
const vm = require('node:vm');
const { isPromise } = require('node:util').types;

const completion = require('./complete.cjs');
const inspector = require('./inspector.cjs');
const names = require('./names.cjs');
const printing = require('./printing.cjs');
const program = require('./program.cjs');
const source = require('./source.cjs');

// A cell may declare variables of these names.
const { process, Buffer, Map, setImmediate, setTimeout, clearTimeout } = globalThis;

const { startSigintWatchdog, stopSigintWatchdog } = process.binding('contextify');
const { Pipe, constants: kinds } = process.binding('pipe_wrap');
const { WriteWrap, streamBaseState, ...numbers } = process.binding('stream_wrap');
const { kReadBytesOrError, kArrayBufferOffset, kLastWriteWasAsync } = numbers;

const { from: bufferFrom, alloc, concat } = Buffer;
const { keys } = Object;
const { apply } = Reflect;
const { then } = Promise.prototype;
const { readSync, writeSync } = fs;
const { reallyExit, kill, emit, listenerCount, hrtime } = process;
const activeResources = process.getActiveResourcesInfo;
const runCallbacks = process._tickCallback;

/** Kinds of the end of a cell. */
const ENDED = 0;
const FAILED = 1;
const INTERRUPTED = 2;
const EXITED = 3;

/** Flags of a cell. */
const TYPESCRIPT = 2;
const VARIABLES = 8;
const FOR_PROGRAM = 16;

/** How long a cell whose code has ended waits for what it has started, in ms. */
const REST_MS = 1000;

/** Longest time between two looks at what is left, in ms. */
const LOOK_MS = 20;

/** Why there is no checkpoint before a cell: Node.js can't be copied while it runs. */
const NEVER_THERE = 8;

/** Bytes that are read at once while the runner's leave is awaited. */
const CHUNK_BYTES = 4096;

/** Most bytes that are shown between two cells and wait for the runner, which takes less of them. */
const MOST_WAITING = 4 << 20;

/** Resources that stay for as long as a program runs. A cell does not wait for them. */
const LASTING = ['TCPServerWrap', 'PipeServerWrap', 'UDPWrap', 'FSEventWrap', 'StatWatcher', 'MessagePort', 'Worker'];

/** The socket to the runner. */
let channel;
/** The cell that runs. */
let cell = null;
/** Those that have come meanwhile. */
const waiting = [];
/** The one that begins next, if the runner was told so. */
let coming = null;
/** What was shown after it was announced: the parts of messages. */
let held = [];
/** How many bytes they have, and how many things between the cells were left out. */
let heldBytes = 0;
let leftOut = 0;
/** How many cells may run their code that have not begun. */
let allowed = 0;
let received = alloc(0);
/** What Node.js and the kernel have open by themselves. */
let own = new Map();
let lastValue;

// --- Messages ---

function send(kind, ...parts) {
  const payload = concat(parts);
  const message = alloc(5 + payload.length);
  message[0] = kind.charCodeAt(0);
  message.writeUInt32BE(payload.length, 1);
  payload.copy(message, 5);
  // Takes the whole message at once, so that an interruption can't cut it.
  const request = new WriteWrap();
  request.oncomplete = () => {};
  // Node.js writes it later if the runner does not read, and would not keep it until then.
  request.message = message;
  channel.writeBuffer(request, message);
  return request;
}

/**
 * Sends something to show. While a cell runs, the runner reads, and the program waits for it as it does when it prints:
 * code that does not let the event loop turn could show more than there is memory. For that, nothing may wait in the
 * channel when a cell begins.
 */
function sendShown(flag, them) {
  const parts = [bufferFrom([flag]), ...printing.parts(them)];
  if (cell === null) {
    let size = 0;
    for (let i = 0; i < parts.length; i += 1) size += parts[i].length;
    if (size + heldBytes + channel.writeQueueSize > MOST_WAITING) {
      leftOut += 1;
      return;
    }
    if (coming !== null) {
      held.push(parts);
      heldBytes += size;
      return;
    }
  }
  sendNow(parts);
}

function sendNow(parts) {
  const waits = cell !== null && channel.writeQueueSize === 0;
  if (waits) channel.setBlocking(true);
  send('d', ...parts);
  if (waits) channel.setBlocking(false);
}

/** Sends what was shown since the cell was announced that has just begun. */
function sendHeld() {
  for (let i = 0; i < held.length; i += 1) sendNow(held[i]);
  if (leftOut > 0) complain(`${leftOut} things that were shown between the cells are missing: they were too many or too large\n`);
  held = [];
  heldBytes = 0;
  leftOut = 0;
}

function receive(arrayBuffer) {
  const count = streamBaseState[kReadBytesOrError];
  if (count < 0) apply(reallyExit, process, [0]);
  if (count === 0) return;
  take(bufferFrom(arrayBuffer, streamBaseState[kArrayBufferOffset], count));
  next();
}

/** Takes the messages of the runner that are complete. */
function take(bytes) {
  received = concat([received, bytes]);
  while (received.length >= 5) {
    const end = 5 + received.readUInt32BE(1);
    if (received.length < end) break;
    const kind = received[0];
    const payload = received.subarray(5, end);
    received = received.subarray(end);
    if (kind === 'C'.charCodeAt(0)) {
      const flags = payload[4];
      // Variables that are set only for this cell, each NAME=value and a null character.
      const start = (flags & VARIABLES) !== 0 ? 9 + payload.readUInt32BE(5) : 5;
      const variables = start > 9 ? payload.toString('utf8', 9, start).split('\0').slice(0, -1) : [];
      waiting.push({ number: payload.readUInt32BE(0), flags, variables, code: payload.toString('utf8', start) });
    } else if (kind === 'G'.charCodeAt(0)) {
      allowed += 1;
    } else if (kind === 'Q'.charCodeAt(0)) {
      send('q', ...completion.answer(payload.toString()));
    }
  }
}

function next() {
  if (cell !== null) return;
  if (coming === null && waiting.length > 0) announce(waiting.shift());
  // Its leave has come, and an interruption had ended the wait for it.
  if (coming !== null && allowed > 0) start();
}

/** Says that a cell can begin, and begins it. */
function announce(next) {
  coming = next;
  // Forgets an interruption that came between the cells.
  startSigintWatchdog();
  stopSigintWatchdog();
  const request = send('s', bufferFrom([NEVER_THERE]));
  // The runner has not read what was shown between the cells. It does so now.
  if (streamBaseState[kLastWriteWasAsync]) request.oncomplete = () => coming === next && start();
  else start();
}

/**
 * Waits until the runner lets the code run. Only then does the server know of it: the code can stop the runner with its
 * first statement. Nothing of earlier cells runs meanwhile.
 */
function awaitLeave() {
  const chunk = alloc(CHUNK_BYTES);
  channel.setBlocking(true);
  while (allowed === 0) {
    let count;
    try {
      count = readSync(channel.fd, chunk, 0, CHUNK_BYTES);
    } catch (error) {
      if (error.code === 'EINTR') continue;
      // The client has closed it.
      apply(reallyExit, process, [1]);
    }
    if (count === 0) apply(reallyExit, process, [0]);
    take(chunk.subarray(0, count));
  }
  channel.setBlocking(false);
  allowed -= 1;
}

/** Writes to standard error, whatever the program has made of it. */
function complain(text) {
  const bytes = bufferFrom(text);
  for (let at = 0; at < bytes.length; ) {
    try {
      at += writeSync(2, bytes, at);
    } catch (error) {
      // It is closed, or has no reader.
      if (error.code !== 'EAGAIN') return;
    }
  }
}

// --- Running a cell ---

let inside = () => {};
const interruptible = new vm.Script('\u0131mport.cell();', { filename: __filename });

/** Runs something, and the callbacks that are due after it, until SIGINT comes. True if it came. */
function run(work) {
  for (;;) {
    inside = () => {
      inside = () => {};
      work();
      apply(runCallbacks, process, []);
    };
    try {
      interruptible.runInThisContext({ breakOnSigint: true });
      return false;
    } catch (error) {
      if (error?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') {
        inspector.recover();
        inspector.dropTicks();
        return true;
      }
      uncaught(error);
      work = () => {};
    }
  }
}

/** Sets variables of the environment, and notes what they were before. The program may have made that impossible. */
function setVariables(mine, variables) {
  try {
    for (const variable of variables) {
      const at = variable.indexOf('=');
      const name = variable.slice(0, at);
      const before = process.env[name];
      process.env[name] = variable.slice(at + 1);
      mine.variables.push([name, before]);
    }
  } catch (error) {
    complain(`The variables for this cell could not be set: ${printing.inOneLine(error)}\n`);
  }
}

function takeBackVariables({ variables }) {
  try {
    for (const [name, value] of variables) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
  } catch {
    // The cell has put an environment of its own there, or frozen it. It has to end all the same.
  }
}

function start() {
  awaitLeave();
  const { number, flags, variables, code } = coming;
  coming = null;
  cell = {
    number,
    /** Has its code ended? */
    hasEnded: false,
    /** What it shows later. */
    pending: 0,
    /** The promise that is its value. */
    promise: null,
    /** Has it failed? */
    hasFailed: false,
    /** The code for which process.exit() was called. */
    exit: null,
    before: resources(),
    /** Variables that were others before it. */
    variables: [],
    /** Is what it shows for a program? Then errors are shown, too. */
    isForProgram: (flags & FOR_PROGRAM) !== 0,
    isAsynchronous: false,
    restUntil: null,
    looks: 0,
    timer: null,
  };
  const mine = cell;
  sendHeld();
  setVariables(mine, variables);
  channel.unref();
  guard();
  const isInterrupted = run(() => evaluate(mine, flags, code));
  if (cell !== mine) return;
  if (mine.exit !== null) endByExit(mine);
  else if (isInterrupted) interrupt();
  else look(mine);
}

function evaluate(mine, flags, code) {
  const { number } = mine;
  printing.keep(number, code);
  let prepared;
  try {
    prepared = source.prepare(code, (flags & TYPESCRIPT) !== 0, `<cell ${number}>`);
    if (!prepared.isInPlace) printing.keepOrigins(number, prepared);
    names.refresh();
    if (prepared.declared !== null) names.declare(prepared.declared);
  } catch (error) {
    settleBadly(mine, error);
    return;
  } finally {
    program.hideKernel();
  }
  const it = inspector.evaluate(`${prepared.text}\n//# sourceURL=${printing.nameForV8(number)}`);
  if (it === undefined) return;
  if ('error' in it) {
    settleBadly(mine, ...problem(prepared, number, it));
  } else {
    follow(mine, it, (result) => settle(mine, result[keys(result)[0]]));
  }
}

/** Why a cell can't be compiled, and where. */
function problem(prepared, number, { error, line, column }) {
  // Of an import V8 says only that the code is no module.
  if (prepared.problem !== null && /(import|export|outside a module)/.test(`${error?.message}`)) {
    const { error: better, ...place } = prepared.problem;
    return [better, { number, ...place }];
  }
  return [error, { number, ...prepared.origin({ line: line + 1, column: column + 1 }) }];
}

/** Goes on when a promise is settled, if the cell still runs then. */
function follow(mine, promise, goOn) {
  const isOver = () => cell !== mine;
  apply(then, promise, [
    (result) => isOver() || goOn(result),
    (error) => isOver() || settleBadly(mine, error),
  ]);
}

/** The code has ended with this value. */
function settle(mine, value) {
  if (isPromise(value)) {
    mine.promise = value;
    follow(mine, value, (result) => settleWell(mine, result));
  } else {
    settleWell(mine, value);
  }
}

function settleWell(mine, value) {
  mine.hasEnded = true;
  if (value !== undefined) {
    lastValue = value;
    try {
      show(mine, value, 1);
    } catch (error) {
      uncaught(error);
    }
  }
  lookSoon(mine);
}

function settleBadly(mine, error, place) {
  mine.hasEnded = true;
  uncaught(error, place);
  lookSoon(mine);
}

/** Shows a value. If it takes time to say in which forms, the cell waits for it. */
function show(mine, value, flag) {
  const them = printing.forms(value, flag === 0);
  if (!isPromise(them)) {
    sendShown(flag, them);
    return;
  }
  if (mine !== null) mine.pending += 1;
  const later = (action) => (result) => {
    if (mine !== null) mine.pending -= 1;
    try {
      action(result);
    } catch (error) {
      uncaught(error);
    }
    if (mine !== null && cell === mine) lookSoon(mine);
  };
  apply(then, them, [later((bundle) => sendShown(flag, printing.ofBundle(value, bundle))), later(uncaught)]);
}

/** Looks whether the cell is over, after the callbacks that are due. */
function lookSoon(mine) {
  // Before that, start() looks.
  if (mine.isAsynchronous) setImmediate(() => cell === mine && look(mine));
}

/** Ends the cell if it is over. Otherwise looks again later. */
function look(mine) {
  if (mine.hasEnded && mine.pending === 0) {
    mine.restUntil ??= milliseconds() + REST_MS;
    if (mine.hasFailed || !hasRest(mine.before) || milliseconds() > mine.restUntil) {
      endByItself(mine);
      return;
    }
  }
  if (!mine.isAsynchronous) {
    mine.isAsynchronous = true;
    inspector.watch(interrupt);
  }
  mine.looks += 1;
  clearTimeout(mine.timer);
  mine.timer = setTimeout(() => cell === mine && look(mine), mine.looks < LOOK_MS ? mine.looks : LOOK_MS);
  mine.timer.unref();
}

/** The event loop has nothing left to do. */
function idle() {
  // Now it has.
  channel.ref();
  const mine = cell;
  if (mine === null || inspector.isInterrupting()) return;
  if (!mine.hasEnded && mine.promise !== null && mine.pending === 0) {
    // Its value is a promise that stays pending, which is no mistake.
    settleWell(mine, mine.promise);
  } else if (!mine.hasEnded || mine.pending > 0) {
    const hint = hasReadInput() ? '; standard input has ended, so no question is answered' : '';
    fail(null, `Error: the cell waits for a promise that nothing can settle anymore${hint}\n`);
    mine.hasEnded = true;
    mine.pending = 0;
    mine.hasFailed = true;
  }
  setImmediate(() => {
    if (cell !== mine) return;
    channel.unref();
    look(mine);
  });
}

/** Whether code has read standard input to its end. */
function hasReadInput() {
  try {
    return process.stdin.readableEnded === true;
  } catch {
    return false;
  }
}

/** By SIGINT, also where no cell runs. */
function interrupt() {
  if (apply(listenerCount, process, ['SIGINT']) > 0) {
    try {
      apply(emit, process, ['SIGINT', 'SIGINT', 2]);
    } catch (error) {
      uncaught(error);
    }
  }
  if (cell === null) return;
  complain('Interrupted\n');
  end(cell, INTERRUPTED, 130);
}

function endByExit(mine) {
  end(mine, EXITED, mine.exit);
}

function endByItself(mine) {
  const code = process.exitCode | 0;
  if (mine.hasFailed) end(mine, FAILED, 1);
  else if (code !== 0) end(mine, EXITED, code);
  else end(mine, ENDED, 0);
}

function end(mine, kind, code) {
  clearTimeout(mine.timer);
  takeBackVariables(mine);
  cell = null;
  process.exitCode = undefined;
  guard();
  channel.ref();
  // Code that runs between the cells may loop, too.
  if (!hasRest(own)) inspector.unwatch();
  const head = alloc(5);
  head[0] = kind;
  head.writeInt32BE(code, 1);
  // An interruption may have come while it showed something.
  channel.setBlocking(false);
  send('e', head);
  if (waiting.length > 0) setImmediate(next);
}

/** How many of each kind keep the event loop going. */
function resources() {
  const counts = new Map();
  for (const name of apply(activeResources, process, [])) counts.set(name, (counts.get(name) ?? 0) + 1);
  return counts;
}

/** Is there more than before of what comes to an end by itself? */
function hasRest(before) {
  for (const [name, count] of resources()) {
    if (count > (before.get(name) ?? 0) && !LASTING.includes(name)) return true;
  }
  return false;
}

function milliseconds() {
  const [seconds, nanoseconds] = hrtime();
  return seconds * 1e3 + nanoseconds / 1e6;
}

/** Prints an error, or shows it if a program gets what the cell shows. */
function fail(error, text) {
  if (cell !== null && cell.isForProgram && !cell.hasFailed) {
    sendShown(0, [printing.ofError(error, text)]);
  } else {
    complain(text);
  }
}

/** What a program throws and does not catch. A program on its own would end there. */
function uncaught(error, place) {
  fail(error, printing.describe(error, place));
  if (cell !== null) cell.hasFailed = true;
}

// --- The program's environment ---

/** Ends the cell as if it were the program. Between cells it ends only the function that calls it. */
function exit(code) {
  const mine = cell;
  if (mine !== null) {
    if (code !== undefined) process.exitCode = code;
    mine.exit = process.exitCode | 0;
  }
  setImmediate(() => {
    inspector.recover();
    if (mine !== null && cell === mine) endByExit(mine);
  });
  inspector.terminate();
}

/** Sends a signal, as process.kill(). A cell that interrupts itself is interrupted at once. */
function sendSignal(pid, signal) {
  const mine = cell;
  const isOwn = pid === process.pid && (signal === 'SIGINT' || signal === 2);
  if (!isOwn || mine === null) return apply(kill, process, [pid, signal]);
  setImmediate(() => {
    inspector.recover();
    if (cell === mine) interrupt();
  });
  return inspector.terminate();
}

/** Takes back what a cell may have done to the process and the kernel needs. */
function guard() {
  if (!process.listeners('beforeExit').includes(idle)) process.on('beforeExit', idle);
  if (!process.hasUncaughtExceptionCaptureCallback()) process.setUncaughtExceptionCaptureCallback(caught);
}

/** Gives an error to the program's own functions for that, if there are any. */
function caught(error) {
  if (apply(listenerCount, process, ['uncaughtException']) === 0) {
    uncaught(error);
    return;
  }
  try {
    apply(emit, process, ['uncaughtException', error, 'uncaughtException']);
  } catch (another) {
    uncaught(another);
  }
}

/** SIGINT is the runner's. A function that a program has for it does not change what the signal does. */
function keepSigint() {
  startSigintWatchdog();
  // Node.js itself listens here, and would take the signal.
  for (const event of ['newListener', 'removeListener']) {
    for (const listener of process.listeners(event)) {
      process.removeListener(event, listener);
      process.on(event, (name, ...rest) => name !== 'SIGINT' && apply(listener, process, [name, ...rest]));
    }
  }
}

function main() {
  const inherited = new Pipe(kinds.IPC);
  inherited.open(Number(process.argv[2]));
  keepSigint();
  program.setUp({
    display: (...values) => values.forEach((value) => show(cell, value, 0)),
    lastValue: () => lastValue,
    runCell: () => inside(),
  });
  process.exit = exit;
  process.kill = sendSignal;
  program.hideKernel();
  printing.cleanStacks();
  guard();
  inherited.onread = () => takeOver(inherited);
  inherited.readStart();
}

/** Takes the channel that has come in the first message. */
function takeOver(inherited) {
  channel = inherited.pendingHandle;
  inherited.close();
  // The runner has ended.
  if (!channel) apply(reallyExit, process, [0]);
  channel.onread = receive;
  send('r', bufferFrom(process.versions.node));
  // The first cell may be on its way, and most need this.
  for (const stream of [process.stdout, process.stderr]) {
    // So that all that was printed is in the pipe when a cell ends, also if that was full.
    stream._handle?.setBlocking?.(true);
  }
  inspector.warmUp();
  source.warmUp();
  own = resources();
  channel.readStart();
}

main();
