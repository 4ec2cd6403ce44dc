//: {"status": "error"}
process.on('exit', (code) => console.log('exit', code));
setTimeout(() => { null.x; }, 5);
setTimeout(() => console.log('never'), 100);
