//: {"status": "error"}
process.on('exit', () => console.log('never'));
console.log('before');
process.kill(process.pid, 'SIGTERM');
setTimeout(() => {}, 5000);
