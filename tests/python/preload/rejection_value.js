//: {"status": "error"}
Promise.reject('a text');
