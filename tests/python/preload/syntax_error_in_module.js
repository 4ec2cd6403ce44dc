//: {"status": "error", "files": {"broken.js": "exports.x = 1;\nfunction ( {\n"}}
require('./broken');
