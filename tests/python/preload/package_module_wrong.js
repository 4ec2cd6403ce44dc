//: {"preloaded": false, "files": {"package.json": "{\"type\": \"module\"}"}, "status": "error"}
console.log(typeof exports);
const fs = require('fs');
