//: {"files": {"worker.mjs": "import { parentPort } from 'node:worker_threads'; parentPort.postMessage([import.meta.url, process.execArgv, await 5]);"}}
const { Worker } = require('worker_threads');
new Worker('./worker.mjs').on('message', console.log).on('exit', () => {
  new Worker(new URL('data:text/javascript,import{parentPort}from"node:worker_threads";parentPort.postMessage(process.argv.length)')).on('message', console.log);
});
