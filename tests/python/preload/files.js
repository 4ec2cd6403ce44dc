//: {"files": {"data/in.txt": "from a file"}}
const fs = require('fs');
console.log(fs.readFileSync('data/in.txt', 'utf8'), fs.readdirSync('.'), fs.readdirSync('/tmp'), fs.statSync('main.js').isFile());
fs.writeFileSync('out.txt', 'x');
fs.promises.readFile('out.txt', 'utf8').then(console.log);
const stream = fs.createWriteStream('stream.txt');
stream.end('y', () => console.log(fs.readFileSync('stream.txt', 'utf8')));
process.on('exit', () => { fs.writeSync(1, 'last\n'); });
try { fs.writeFileSync('/usr/x', ''); } catch (error) { console.log(error.message); }
