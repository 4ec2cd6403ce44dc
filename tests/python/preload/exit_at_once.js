//: {"status": "error"}
process.on('exit', (code) => { console.log('exit', code); process.exit(12); });
setTimeout(() => console.log('never'), 10);
(async () => { try { process.exit(11); } finally { console.log('not reached'); } })();
