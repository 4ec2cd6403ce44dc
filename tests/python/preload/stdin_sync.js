//: {"stdin": "all of it"}
const fs = require('fs');
const buffer = Buffer.alloc(4);
console.log(fs.readSync(0, buffer), String(buffer), fs.readFileSync('/dev/stdin', 'utf8'), fs.readSync(0, buffer));
