//: {"stdin": "nobody reads this"}
console.log('end', process.stdin.listenerCount('data'));
