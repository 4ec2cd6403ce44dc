//: {"unordered": true}
// Started long ago or not, a timer counts from now.
const begin = Number(process.hrtime.bigint()) / 1e6;
const passed = () => Number(process.hrtime.bigint()) / 1e6 - begin;
setTimeout(() => console.log('late', passed() >= 299), 300);
setTimeout(() => console.log('soon', passed() >= 99), 100);
let ticks = 0;
const interval = setInterval(() => { if (++ticks === 3) { clearInterval(interval); console.log('ticks', passed() >= 59); } }, 20);
require('timers/promises').setTimeout(50, 'value').then((value) => console.log(value, passed() >= 49));
AbortSignal.timeout(150).addEventListener('abort', (event) => console.log(event.type, passed() >= 149));
