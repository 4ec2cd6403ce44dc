// Runs cells in the prompt of Node.js. Reads a list of lists of cells on standard input, and writes a list of what the
// last cell of each shows.

'use strict';

const repl = require('node:repl');
const { PassThrough } = require('node:stream');
const { inspect } = require('node:util');
const { text: readAll } = require('node:stream/consumers');

/** How long a cell may take, in ms. */
const LIMIT_MS = 5000;

async function main() {
  const results = [];
  for (const cells of JSON.parse(await readAll(process.stdin))) results.push(await shownBy(cells));
  process.stdout.write(JSON.stringify(results), () => process.exit());
}

async function shownBy(cells) {
  const prompt = repl.start({ input: new PassThrough(), output: new PassThrough(), terminal: false });
  let shown;
  for (const cell of cells) shown = await run(prompt, cell);
  return shown;
}

function run(prompt, cell) {
  return new Promise((done) => {
    const limit = setTimeout(done, LIMIT_MS, 'no end');
    const end = (shown) => {
      clearTimeout(limit);
      done(shown);
    };
    // So an error comes that code throws at once.
    prompt._domain.removeAllListeners('error');
    prompt._domain.on('error', (error) => end(`error: ${error}`));
    prompt.eval(`${cell}\n`, prompt.context, 'cell', (error, value) => {
      if (error) end(`error: ${error.err ?? error}`);
      else end(value === undefined ? 'None' : inspect(value));
    });
  });
}

process.on('uncaughtException', () => {});
main();
