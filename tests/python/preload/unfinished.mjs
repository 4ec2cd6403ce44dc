//: {"status": "error", "hide": ["\\(node:\\d+\\)"], "preloaded": false}
console.log('before');
await new Promise(() => {});
