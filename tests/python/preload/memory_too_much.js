//: {"status": "out_of_memory"}
console.log('before');
const blocks = [];
for (;;) blocks.push(Buffer.alloc(16 << 20, 1));
