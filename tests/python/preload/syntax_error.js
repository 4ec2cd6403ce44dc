//: {"status": "error"}
console.log('never');
const x = ;
