//: {"status": "error", "hide": ["\\(node:\\d+\\)"]}
import 'node:fs';
console.log('before');
await new Promise(() => {});
