console.log(Object.getOwnPropertyNames(globalThis).sort());
console.log(Object.keys(globalThis), typeof require, typeof globalThis.require, typeof fetch, typeof localStorage);
for (const name of ['Buffer', 'process', 'console', 'setTimeout', 'fetch', 'structuredClone', 'navigator', 'crypto', 'perform\x61nce']) {
  const { configurable, enumerable, writable, get } = Object.getOwnPropertyDescriptor(globalThis, name);
  console.log(name, configurable, enumerable, writable, Boolean(get));
}
console.log(navigator.hardwareConcurrency, navigator.language, new Error('x').stack.split('\n').length, Error.stackTraceLimit);
