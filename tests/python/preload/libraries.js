const _ = require('lodash');
const dayjs = require('dayjs');
const { z } = require('zod');
const YAML = require('yaml');
const Papa = require('papaparse');
const Decimal = require('decimal.js');
console.log(_.groupBy([1, 2, 3], (n) => n % 2), dayjs('2024-01-31').add(1, 'month').format(), z.object({ a: z.number() }).safeParse({ a: 'x' }).success);
console.log(YAML.stringify({ a: [1] }), Papa.parse('a,b\n1,2').data, new Decimal(0.1).plus(0.2).toString());
console.log(require('crypto').createHash('sha256').update('').digest('hex'), require('zlib').gunzipSync(require('zlib').gzipSync('x')).toString());
const assert = require('assert');
try { assert.deepStrictEqual({ a: 1 }, { a: 2 }); } catch (error) { console.log(error.message); }
console.log(require('util').inspect(new Map([[{ a: 1 }, new Set([1])]]), { depth: 0 }), structuredClone(new Date(0)));
console.table([{ a: 1 }, { b: 2 }]);
