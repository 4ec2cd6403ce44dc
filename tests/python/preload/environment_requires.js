//: {"env": {"NODE_OPTIONS": "--require /workspace/first.js"}, "preloaded": false, "files": {"first.js": "console.log('first', module.parent?.id)"}}
console.log('second', process._preload_modules);
