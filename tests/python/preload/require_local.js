//: {"files": {"lib/index.js": "exports.where = __filename; exports.parent = module.parent.id; exports.cycle = require('../circle')", "circle.js": "exports.early = 1; exports.lib = Object.keys(require('./lib'))", "data.json": "{\"x\": [1]}", "throws.js": "throw new Error('in a module')", "bad.json": "{"}}
console.log(require('./lib'), require('./data'), require('./data.json') === require('./data'), Object.keys(require.cache));
for (const name of ['./throws', './bad', './missing', 'missing', '', './lib/']) {
  try {
    console.log(Object.keys(require(name)));
  } catch (error) {
    console.log(error.name, error.code, error.message, error.requireStack);
  }
}
delete require.cache[require.resolve('./data')];
console.log(require('./data'));
require.extensions['.txt'] = (module) => { module.exports = 'hooked'; };
require('fs').writeFileSync('new.txt', '');
console.log(require('./new.txt'));
