//: {"stdin": "first\nsecond ü\nlast without end"}
console.log(process.stdin.readableFlowing, process.stdin.isTTY, process.stdin.fd);
const lines = require('readline').createInterface({ input: process.stdin });
lines.on('line', (line) => console.log([line])).on('close', () => console.log('closed'));
