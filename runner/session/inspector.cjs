// The kernel's use of V8's inspector: it evaluates cells, and interrupts functions that the event loop calls.

'use strict';

const path = require('node:path');
const { executionAsyncId } = require('node:async_hooks');

const { global, process, Map, Set, Error, Int32Array, SharedArrayBuffer, setTimeout, clearTimeout } = globalThis;
const { Connection } = process.binding('inspector');
const { defineProperty, keys } = Object;
const { compareExchange, notify } = globalThis.Atomics;
const { stringify, parse } = JSON;
const { apply } = Reflect;
const { _tickCallback: tickCallback } = process;

/** States of an interruption, which watch.cjs has, too. */
const ASKED = 1;
const TAKEN = 2;

/** How long the thread that waits for SIGINT stays after a cell, in ms. Starting one takes 25 ms of another core. */
const LINGER_MS = 2000;

const answers = new Map();
/** The promises of code that has not ended. */
const unsettled = new Set();
let calls = 0;
const connection = new Connection((text) => {
  const message = parse(text);
  const answer = answers.get(message.id);
  answers.delete(message.id);
  if (answer !== undefined) answer(message.result);
});

/** Calls a method. `answer` gets the result, or undefined if it failed. */
function call(method, params, answer) {
  const id = ++calls;
  if (answer !== undefined) answers.set(id, answer);
  connection.dispatch(stringify({ __proto__: null, id, method, params: { __proto__: null, ...params } }));
}

/** Calls a method that answers at once. */
function callNow(method, params) {
  let result;
  call(method, params, (it) => (result = it));
  return result;
}

let taken;
/** The inspector's name for the function that takes a value out of it. */
let taker;

/** A name that a value has for code that the inspector evaluates. */
const HOLE = '\u0131nspected';

/** Evaluates code that finds a value under that name. */
function evaluateWith(value, params) {
  defineProperty(global, HOLE, { value, configurable: true });
  const answer = callNow('Runtime.evaluate', params);
  delete global[HOLE];
  return answer;
}

/** Gives the inspector a value, for which it has a name from then on. */
function nameOf(value) {
  return evaluateWith(value, { expression: HOLE }).result.objectId;
}

/** Declares a variable as a cell would do it with `let`. */
function declare(name, value) {
  // The code has run when this returns, though the answer comes later.
  evaluateWith(value, { expression: `let ${name} = ${HOLE};`, replMode: true, silent: true });
}

/** The names that cells have declared with `let`, `const` and `class`. */
function lexicalNames() {
  return callNow('Runtime.globalLexicalScopeNames', {}).names;
}

/** The value of which the inspector tells. */
function valueOf({ type, subtype, value, objectId, unserializableValue }) {
  if (type === 'undefined') return undefined;
  if (subtype === 'null') return null;
  if (objectId === undefined && unserializableValue === undefined) return value;
  callNow('Runtime.callFunctionOn', {
    objectId: taker,
    functionDeclaration: 'function (value) { this(value); }',
    arguments: [{ __proto__: null, objectId, unserializableValue }],
  });
  const it = taken;
  taken = undefined;
  return it;
}

/**
 * Evaluates code as the input of a debugger's console. Returns a promise of an object with the value as its only
 * property; or an object with `error`, `line` and `column` (from 0) if the code has not begun; or undefined if the code
 * was terminated.
 */
function evaluate(expression) {
  let promise;
  let answer;
  let isNow = true;
  const hooks = asyncWrap.getPromiseHooks();
  const restoreHooks = () => apply(asyncWrap.setPromiseHooks, asyncWrap, hooks);
  // V8 makes the promise of the whole code first. It must not be lost: when it can't be settled anymore, the garbage
  // collector would call the inspector's answer, and abort.
  asyncWrap.setPromiseHooks((it) => {
    restoreHooks();
    promise = it;
    unsettled.add(it);
  }, undefined, undefined, undefined);
  call('Runtime.evaluate', { expression, replMode: true, awaitPromise: true, objectGroup: 'cell' }, (result) => {
    unsettled.delete(promise);
    answer = { result };
    const { exceptionDetails, result: value } = result ?? {};
    // It has failed before its first statement: V8 can't compile it, or can't declare its variables. Its promise stays pending.
    if (isNow && exceptionDetails !== undefined) answer.error = valueOf(exceptionDetails.exception);
    const { objectId } = exceptionDetails?.exception ?? value ?? {};
    if (objectId !== undefined) call('Runtime.releaseObjectGroup', { objectGroup: 'cell' });
  });
  isNow = false;
  if (promise === undefined) {
    restoreHooks();
    // It was terminated before it began.
    if (answer?.result?.exceptionDetails === undefined) return undefined;
  }
  if (answer !== undefined && 'error' in answer) {
    const { lineNumber: line, columnNumber: column } = answer.result.exceptionDetails;
    return { error: answer.error, line, column };
  }
  return answer !== undefined && answer.result === undefined ? undefined : promise;
}

/** Terminates what runs, which can't catch it. Does not return. */
function terminate() {
  forgiveUnwinding();
  call('Runtime.terminateExecution');
  for (;;);
}

/** Variables of the module of Node.js that defines a function. Only the inspector can reach them. */
function variablesOf(definition, names) {
  const properties = (objectId) => callNow('Runtime.getProperties', { objectId, ownProperties: true });
  const scopes = properties(nameOf(definition)).internalProperties.find(({ name }) => name === '[[Scopes]]');
  const found = { __proto__: null };
  for (const scope of properties(scopes.value.objectId).result) {
    if (scope.value.description === 'Global') continue;
    for (const { name, value } of properties(scope.value.objectId).result) {
      if (names.includes(name)) found[name] ??= valueOf(value);
    }
  }
  const missing = names.find((name) => found[name] === undefined);
  if (missing === undefined) return found;
  throw new Error(`the kernel does not know this version of Node.js, which has no ${missing}`);
}

/**
 * Lets the process survive that a callback is terminated. Node.js keeps a stack of the operations that it is in, and
 * aborts when a callback has left something there.
 */
function forgiveUnwinding() {
  asyncWrap.async_hook_fields[asyncWrap.constants.kCheck] = 0;
  asyncWrap.clearAsyncIdStack();
}

let timers;
let ticks;

/** Repairs what Node.js could not do at the end of a callback, because that was terminated. */
function recover() {
  forgiveUnwinding();
  timers ??= variablesOf(setTimeout, ['binding', 'timerListMap', 'immediateQueue', 'kRefed', 'kCount', 'kRefCount']);
  const { binding, timerListMap, immediateQueue, kRefed, kCount, kRefCount } = timers;
  let refs = 0;
  for (const duration of keys(timerListMap)) {
    const list = timerListMap[duration];
    for (let timer = list._idlePrev; timer !== list; timer = timer._idlePrev) if (timer[kRefed]) refs += 1;
  }
  binding.timeoutInfo[0] = refs;
  binding.toggleTimerRef(refs > 0);
  // Otherwise the next one would come only with a timer of another duration.
  binding.scheduleTimer(1);
  let count = 0;
  let kept = 0;
  for (let immediate = immediateQueue.head; immediate; immediate = immediate._idleNext) {
    count += 1;
    if (immediate[kRefed]) kept += 1;
  }
  binding.immediateInfo[kCount] = count;
  binding.immediateInfo[kRefCount] = kept;
  binding.toggleImmediateRef(kept > 0);
}

/** Forgets the functions for process.nextTick(): they may be what is endless. */
function dropTicks() {
  ticks ??= variablesOf(tickCallback, ['queue']);
  while (ticks.queue.shift() !== null);
}

let watcher = null;
/** The timer that ends it. */
let leaving = null;
let Worker;
let flags;

/**
 * Calls `interrupt` after a SIGINT that comes while the event loop runs. That takes a thread, because this one may be
 * in an endless loop. It takes 10 MB, so it is there only when it is needed.
 */
function watch(interrupt) {
  forgiveUnwinding();
  clearTimeout(leaving);
  leaving = null;
  if (watcher !== null) return;
  flags = new Int32Array(new SharedArrayBuffer(8));
  try {
    watcher = new Worker(path.join(__dirname, 'watch.cjs'), {
      workerData: flags,
      execArgv: [],
      trackUnmanagedFds: false,
      resourceLimits: { maxYoungGenerationSizeMb: 2, maxOldGenerationSizeMb: 16, stackSizeMb: 1 },
    });
  } catch {
    // There may be no more threads. Then only the runner can end an endless loop, together with the process.
    return;
  }
  watcher.on('error', () => (watcher = null));
  watcher.on('message', (isForced) => {
    if (!isForced) {
      // Otherwise this thread is going to be terminated, and gets a message afterwards.
      if (compareExchange(flags, 1, ASKED, TAKEN) !== ASKED) return;
      notify(flags, 1);
    }
    if (isForced) {
      flags[1] = 0;
      recover();
    }
    interrupt();
  });
  // After the functions, which would keep the event loop going.
  watcher.unref();
}

/** True from a SIGINT that was noticed until `interrupt` is called. */
function isInterrupting() {
  return watcher !== null && flags[1] !== 0 && flags[1] !== TAKEN;
}

/** The thread is not needed now. It stays for a moment, because the next cell may need it again. */
function unwatch() {
  if (watcher === null || leaving !== null) return;
  leaving = setTimeout(() => {
    leaving = null;
    if (watcher === null) return;
    watcher.removeAllListeners();
    watcher.on('error', () => {});
    watcher.terminate();
    watcher = null;
  }, LINGER_MS);
  leaving.unref();
}

/** Does what is not needed for the first cell. */
function warmUp() {
  ({ Worker } = require('node:worker_threads'));
}

taker = nameOf((value) => (taken = value));
const asyncWrap = variablesOf(executionAsyncId, ['async_wrap']).async_wrap;

module.exports = { evaluate, declare, lexicalNames, terminate, recover, dropTicks, watch, isInterrupting, unwatch, warmUp };
