//: {"hide": ["\\(node:\\d+\\)"], "files": {"seen.js": "exports.x = 1"}}
const Module = require('module');
const { _resolveFilename, _load } = Module;
const asked = [];
Module._resolveFilename = function (request, ...rest) { asked.push(request); return _resolveFilename.call(this, request, ...rest); };
Module._load = function (request, ...rest) { asked.push(`load ${request}`); return _load.call(this, request, ...rest); };
require('./seen');
require('fs');
console.log(asked);
Module._load = _load;
Module._resolveFilename = _resolveFilename;
const hooks = Module.registerHooks({ resolve: (specifier, context, next) => { console.log('resolve', specifier); return next(specifier, context); } });
import('node:os').then(() => { require('./seen'); hooks.deregister(); });
