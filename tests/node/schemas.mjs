// Compiles the JSON schemas on standard input, a list, as strictly as Ajv can, and prints what it says against them.

import { readFileSync } from 'node:fs';
import { Ajv } from 'ajv';

const said = [];
const logger = { log: () => {}, warn: (text) => said.push(text), error: (text) => said.push(text) };

for (const schema of JSON.parse(readFileSync(0, 'utf8'))) {
  try {
    new Ajv({ strict: true, strictTypes: true, strictTuples: true, strictRequired: true, logger }).compile(schema);
  } catch (error) {
    said.push(error.message);
  }
}
process.stdout.write(JSON.stringify(said));
