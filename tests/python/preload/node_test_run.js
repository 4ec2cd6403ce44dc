//: {"files": {"some.test.js": "require('node:test')('inner', () => { console.log(process.argv.length, process.env.NODE_OPTIONS); });"}, "hide": ["duration_ms:? [\\d.]+"]}
const { run } = require('node:test');
const { tap } = require('node:test/reporters');
run({ files: [require('path').resolve('some.test.js')] }).compose(tap).pipe(process.stdout);
