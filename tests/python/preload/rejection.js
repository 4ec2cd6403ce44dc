//: {"status": "error"}
process.on('exit', (code) => console.log('exit', code));
async function fail() {
  await null;
  throw new RangeError('nobody handles this');
}
fail();
setTimeout(() => console.log('never'), 100);
