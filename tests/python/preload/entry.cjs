//: {"preloaded": false}
console.log(require.main === module, __filename);
