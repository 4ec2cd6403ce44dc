//: {"hide": ["\\(node:\\d+\\)"], "args": ["a"],
//: "files": {"data.json": "{\"a\": 1}", "other.js": "export default import.meta.url", "old.cjs": "exports.x = module.parent?.id"}}
import fs, { readFileSync } from 'node:fs';
import _ from 'lodash';
import data from './data.json' with { type: 'json' };
console.log(import.meta.url, import.meta.filename, import.meta.dirname, import.meta.resolve('lodash'), import.meta.main);
console.log(typeof require, typeof module, this, process.argv, data, _.chunk([1, 2, 3], 2), fs.readFileSync === readFileSync);
console.log((await import('./other.js')).default, (await import('./old.cjs')).default);
import { createRequire } from 'node:module';
const require_ = createRequire(import.meta.url);
console.log(Object.keys(require_.cache), require_.main, require_('./old.cjs'));
await new Promise((resolve) => setTimeout(resolve, 10));
console.log(process.getActiveResourcesInfo());
