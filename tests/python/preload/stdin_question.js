//: {"stdin": "Ada\n36\n"}
const readline = require('readline/promises').createInterface({ input: process.stdin, output: process.stdout });
(async () => {
  const name = await readline.question('name? ');
  console.log(`hello ${name}`);
  readline.close();
})();
