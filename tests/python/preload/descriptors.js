//: {"hide": ["\\[\\d+\\]", "\\d+ -> /proc/\\d+/fd"]}
const fs = require('fs');
for (const fd of fs.readdirSync('/proc/self/fd')) {
  try {
    const link = fs.readlinkSync(`/proc/self/fd/${fd}`);
    console.log(fd, '->', link, /flags:\s*\d+/.exec(fs.readFileSync(`/proc/self/fdinfo/${fd}`, 'latin1'))[0]);
  } catch (error) {
    console.log(fd, error.code);
  }
}
console.log(fs.openSync('/dev/null'));
