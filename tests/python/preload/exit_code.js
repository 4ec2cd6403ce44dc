//: {"status": "error"}
process.exitCode = 3;
process.on('exit', (code) => { console.log('exit', code); process.exitCode = 7; });
