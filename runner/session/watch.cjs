// A thread that waits for SIGINT, because the kernel's own may be in an endless loop. It asks the kernel to end the
// cell, and terminates its code if there is no answer.

'use strict';

const { parentPort, workerData: flags } = require('node:worker_threads');
const { Script } = require('node:vm');
const { Session } = require('node:inspector');

const { watchdogHasPendingSigint, startSigintWatchdog, stopSigintWatchdog } = process.binding('contextify');

/** States of an interruption, which inspector.cjs has, too. */
const ASKED = 1;
const TAKEN = 2;
const FORCED = 3;

/** How long the kernel may take to answer, in ms. */
const ANSWER_MS = 50;

globalThis.wait = () => Atomics.wait(flags, 0, 0);
const waiting = new Script('wait();');

function watch() {
  // One may have come before this thread was there.
  if (!watchdogHasPendingSigint()) {
    try {
      waiting.runInThisContext({ breakOnSigint: true });
    } catch {
      // It was interrupted, which is what it waited for.
    }
  }
  startSigintWatchdog();
  stopSigintWatchdog();
  Atomics.store(flags, 1, ASKED);
  parentPort.postMessage(false);
  Atomics.wait(flags, 1, ASKED, ANSWER_MS);
  if (Atomics.compareExchange(flags, 1, ASKED, FORCED) === TAKEN) {
    setImmediate(watch);
    return;
  }
  // Connected only now: as long as it is, the kernel would wait for it before it ends.
  const session = new Session();
  session.connectToMainThread();
  session.post('Runtime.terminateExecution', () => {
    session.disconnect();
    parentPort.postMessage(true);
    setImmediate(watch);
  });
}

// Or the thread would end with the first turn of its event loop.
parentPort.ref();
watch();
