//: {"preloaded": false, "files": {"package.json": "{\"type\": "}, "status": "error"}
console.log('never or not');
