//: {"status": "error"}
function inner() {
  throw new TypeError('what was wrong', { cause: new Error('the cause') });
}
console.log('before');
function outer() {
  inner();
}
outer();
