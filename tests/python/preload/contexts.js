//: {"hide": ["\\(node:\\d+\\)"]}
const vm = require('vm');
console.log(vm.runInNewContext('typeof process + x', { x: 1 }), vm.runInThisContext('typeof require'), new vm.Script('1 + 1').runInThisContext());
console.log(eval('typeof module'), new Function('return typeof module')(), vm.isContext(globalThis));
try { vm.runInThisContext('throw new Error("x")', 'made-up.js'); } catch (error) { console.log(error.stack.split('\n')[1]); }
try { new vm.Script('let 1', { filename: 'bad.js' }); } catch (error) { console.log(error.stack.split('\n').slice(0, 4).join('\n')); }
