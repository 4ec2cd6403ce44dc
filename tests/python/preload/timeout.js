//: {"status": "timeout", "timeout": "1s"}
console.log('before');
setInterval(() => {}, 1000);
