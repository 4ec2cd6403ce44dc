// Close to the limit of 256 MiB.
const blocks = [];
for (let i = 0; i < 18; i++) blocks.push(Buffer.alloc(10 << 20, 1));
console.log(blocks.length);
