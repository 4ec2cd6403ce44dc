// Runs the checks of a framework and prints one JSON object with the versions and what became of each check.

import { createRequire } from "node:module";

const WITHIN_MS = 90_000;

async function outcome(check) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`there is no answer within ${WITHIN_MS} ms`)), WITHIN_MS);
  });
  try {
    await Promise.race([check(), late]);
    return "works";
  } catch (error) {
    if (process.env.CHECKS_DEBUG) console.error(error);
    return `fails: ${error.name}: ${String(error.message).split("\n")[0].slice(0, 300)}`;
  } finally {
    clearTimeout(timer);
  }
}

export async function main(checks, ...packages) {
  const outcomes = {};
  for (const check of checks) outcomes[check.name] = await outcome(check);
  const require = createRequire(import.meta.url);
  const versionOf = (name) => require(`${require.resolve.paths(name)[0]}/${name}/package.json`).version;
  console.log(JSON.stringify({ versions: Object.fromEntries(packages.map((it) => [it, versionOf(it)])), checks: outcomes }));
  // A stream that did not end must not keep the process alive.
  process.exit();
}
