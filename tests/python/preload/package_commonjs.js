//: {"preloaded": false, "files": {"package.json": "{\"type\": \"commonjs\", \"name\": \"mine\", \"exports\": {\"./part\": \"./part.js\"}, \"imports\": {\"#inner\": \"./part.js\"}}", "part.js": "exports.x = __filename", "lib/package.json": "{\"type\": \"module\"}", "lib/a.js": "export default 5"}}
console.log(require('./part').x, require('mine/part').x, require('#inner').x, require('./lib/a.js').default);
try {
  require('mine/other');
} catch (error) {
  console.log(error.code, error.message);
}
