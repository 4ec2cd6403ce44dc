//: {"hide": ["\\(node:\\d+\\)"]}
new Buffer(5);
Buffer(3);
process.binding('natives');
require('url').parse('http://a b');
process.emitWarning('mine', 'Kind', 'CODE1');
process.emitWarning('mine again', { type: 'DeprecationWarning', code: 'CODE2', detail: 'detail' });
process.emitWarning('mine again', { type: 'DeprecationWarning', code: 'CODE2' });
process.on('warning', (warning) => console.log(warning.name, warning.code, warning.message));
const emitter = new (require('events'))();
for (let i = 0; i < 12; i++) emitter.on('x', () => {});
require('util').deprecate(() => {}, 'old', 'CODE3')();
