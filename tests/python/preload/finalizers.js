const registry = new FinalizationRegistry((held) => console.log('gone', held));
registry.register({}, 'a');
const reference = new WeakRef({ x: 1 });
console.log(typeof gc, reference.deref());
require('v8').setFlagsFromString('--expose-gc');
require('vm').runInNewContext('gc')();
setTimeout(() => console.log(reference.deref()), 10);
