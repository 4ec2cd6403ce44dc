// What is told comes when the event loop has time for it, so that nothing here may depend on how long that takes.
const waits = setInterval(() => {}, 1000);
const registry = new FinalizationRegistry((held) => {
    console.log('gone', held, reference.deref());
    clearInterval(waits);
});
registry.register({}, 'a');
const reference = new WeakRef({ x: 1 });
console.log(typeof gc, reference.deref());
require('v8').setFlagsFromString('--expose-gc');
require('vm').runInNewContext('gc')();
