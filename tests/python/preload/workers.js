//: {"unordered": true, "args": ["a"], "hide": ["\\(node:\\d+\\)"]}
const { Worker, isMainThread, threadId, parentPort, workerData, SHARE_ENV } = require('worker_threads');
if (isMainThread) {
  const run = (options) => new Promise((resolve) => {
    const worker = new Worker(__filename, { workerData: 5, ...options });
    worker.on('message', (message) => console.log(options, message));
    worker.on('error', (error) => console.log('error', error.message));
    worker.on('exit', (code) => { console.log('exit', code); resolve(); });
  });
  (async () => {
    await run({});
    await run({ argv: ['b'], env: { A: '1' }, execArgv: [] });
    await run({ env: SHARE_ENV, stdout: false });
    await run({ workerData: 'throw' });
    const text = new Worker('require("worker_threads").parentPort.postMessage([process.execArgv, Object.keys(require.cache), process.argv])', { eval: true });
    text.on('message', console.log);
  })();
} else {
  if (workerData === 'throw') throw new Error('in a worker');
  const { NODE_OPTIONS, ISOLATOR_PRELOAD, A } = process.env;
  parentPort.postMessage([threadId, process.argv, process.execArgv, Object.keys(require.cache), module.children, NODE_OPTIONS,
    ISOLATOR_PRELOAD, A, process._preload_modules, require.main === module, module.parent]);
  console.log('from the worker');
}
