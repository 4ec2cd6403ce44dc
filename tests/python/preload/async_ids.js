const hooks = require('async_hooks');
console.log(hooks.executionAsyncId(), hooks.triggerAsyncId());
const seen = [];
const hook = hooks.createHook({ init: (id, type, trigger) => seen.push([id, type, trigger]) }).enable();
setTimeout(() => { hook.disable(); console.log(seen, hooks.executionAsyncId()); }, 1);
Promise.resolve().then(() => {});
const storage = new hooks.AsyncLocalStorage();
storage.run(5, () => setTimeout(() => console.log(storage.getStore()), 10));
