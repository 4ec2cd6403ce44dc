// What every client does with the server, and how its answers are judged: see checks.py, which does the same.
// `node NAME.mjs [URL]` starts `isolator serve` from the PATH, or takes the address of a server.

import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

const here = new URL('.', import.meta.url)
const CHECKS = JSON.parse(readFileSync(new URL('../checks.json', here)))
const WITHIN_MS = 30_000
const CANCELLED_AFTER_MS = 1_000
const HANDLE = /\b[0-9a-f]{32}\b/

// A check that has failed. Its message says how.
class Failed extends Error {}

function debug(text) {
  if (process.env.CHECKS_DEBUG !== undefined) console.error(text)
}

async function within(milliseconds, promise, what) {
  const late = sleep(milliseconds, undefined, { ref: false }).then(() => {
    throw new Failed(what)
  })
  return Promise.race([promise, late])
}

// Has the model call a tool. A call must not end the agent's run, whatever comes of it.
async function told(client, tool, args) {
  try {
    const answer = await within(WITHIN_MS, client.ask(tool, args), 'there is no answer')
    debug(`${tool}: ${answer.text.slice(0, 600)}\n[${answer.pictures} pictures]`)
    return answer
  } catch (error) {
    if (error instanceof Failed) throw error
    debug(error)
    throw new Failed(`the run ends with ${error.constructor.name}`)
  }
}

function expect(what, patterns, text) {
  const missing = patterns.find((pattern) => !new RegExp(pattern).test(text))
  if (missing !== undefined) throw new Failed(`${what} ${missing}`)
}

async function call(client, name) {
  const check = CHECKS[name]
  const answer = await told(client, 'execute_code', check.arguments)
  expect('the model is not told', check.told ?? [], answer.text)
  if (answer.pictures < (check.pictures ?? 0)) throw new Failed('the model sees no picture')
  return answer
}

// A long run is answered with a handle, and its result is fetched with that.
async function detached(client) {
  const answer = await call(client, 'detached')
  const [handle] = HANDLE.exec(answer.text)
  for (let times = 0; times < 5; times++) {
    const answer = await told(client, 'get_result', { handle })
    if (answer.text.includes(CHECKS.detached.later)) return
  }
  throw new Failed('the result does not come')
}

// What was too long for the answer is read by its address.
async function resources(client) {
  const answer = await call(client, 'resources')
  const [uri] = /isolator:\/\/runs\/[\w./-]+/.exec(answer.text)
  expect('it does not contain', [CHECKS.resources.read], await client.read(uri))
}

// A call that is cancelled ends its program, so that the next one gets the server's only slot.
async function cancel(client) {
  const canceller = new AbortController()
  const running = client.ask('execute_code', CHECKS.cancel.arguments, canceller.signal)
  const ended = running.then(
    () => true,
    () => true,
  )
  if (await Promise.race([ended, sleep(CANCELLED_AFTER_MS)])) throw new Failed('the call has an answer already')
  canceller.abort()
  await within(WITHIN_MS, ended, 'the call does not end')
  const goesOn = new Failed('the program goes on')
  await within(5_000, call(client, 'hello'), '').catch(() => {
    throw goesOn
  })
}

const SPECIAL = { detached, resources, cancel }

async function check(client, name) {
  try {
    await (SPECIAL[name] ? SPECIAL[name](client) : call(client, name))
    return 'works'
  } catch (error) {
    if (error instanceof Failed) return `fails: ${error.message}`
    throw error
  }
}

// Runs all checks with a client, which `connect` gives, and prints what has become of them.
export async function main(connect, ...packages) {
  const client = await connect(process.argv[2])
  const wanted = process.env.CHECKS?.split(' ') ?? Object.keys(CHECKS)
  const checks = {}
  for (const name of wanted) {
    debug(`--- ${name}`)
    checks[name] = await check(client, name)
  }
  await client.close()
  const versions = packages.map((name) => {
    const path = new URL(`node_modules/${name}/package.json`, here)
    return [name, JSON.parse(readFileSync(path)).version]
  })
  console.log(JSON.stringify({ versions: Object.fromEntries(versions), checks }))
}

// What the model is told of a result, by a client that hands on its blocks as they are.
export function toldByBlocks(content) {
  const texts = content.map((block) => (block.type === 'text' ? block.text : JSON.stringify(block)))
  return { text: texts.join('\n'), pictures: content.filter((block) => block.type === 'image').length }
}
