// Algorithms as collections of them keep them: a function with its checks, classes, generators and errors.
//: {"status": "error"}
const assert = require('node:assert/strict');
const { test, describe } = { describe: (name, body) => { console.log(name); body(); }, test: (name, body) => { try { body(); console.log('  ok', name); } catch (error) { console.log('  not ok', name, error.message); } } };

/** The shortest way from one place to all others. */
function shortest(graph, start) {
  const costs = new Map([[start, 0]]);
  const queue = [[0, start]];
  while (queue.length > 0) {
    queue.sort(([a], [b]) => a - b);
    const [cost, name] = queue.shift();
    for (const [next, more] of Object.entries(graph[name] ?? {})) {
      if (cost + more < (costs.get(next) ?? Infinity)) {
        costs.set(next, cost + more);
        queue.push([cost + more, next]);
      }
    }
  }
  return Object.fromEntries(costs);
}

class LinkedList {
  #head = null;
  #size = 0;
  static from(values) { const list = new LinkedList(); for (const value of values) list.push(value); return list; }
  get size() { return this.#size; }
  push(value) {
    const node = { value, next: null };
    let last = this.#head;
    while (last?.next) last = last.next;
    if (last) last.next = node; else this.#head = node;
    this.#size += 1;
    return this;
  }
  reverse() {
    let [before, here] = [null, this.#head];
    while (here) [here.next, before, here] = [before, here, here.next];
    this.#head = before;
    return this;
  }
  * [Symbol.iterator]() { for (let node = this.#head; node; node = node.next) yield node.value; }
}

function * permutations(items) {
  if (items.length < 2) { yield items; return; }
  for (const [i, first] of items.entries()) {
    for (const rest of permutations([...items.slice(0, i), ...items.slice(i + 1)])) yield [first, ...rest];
  }
}

const gcd = (a, b) => (b === 0n ? a : gcd(b, a % b));

describe('algorithms', () => {
  test('shortest', () => assert.deepEqual(shortest({ a: { b: 1, c: 5 }, b: { c: 2 } }, 'a'), { a: 0, b: 1, c: 3 }));
  test('list', () => assert.deepEqual([...LinkedList.from([1, 2, 3]).reverse()], [3, 2, 1]));
  test('permutations', () => assert.equal([...permutations([1, 2, 3, 4])].length, 24));
  test('gcd', () => assert.equal(gcd(2n ** 64n, 6n ** 40n), 2n ** 40n));
  test('fails', () => assert.deepEqual(LinkedList.from([1]).size, 2));
});

module.exports = { shortest, LinkedList, permutations, gcd };
console.log(module.exports, require.main === module);
setTimeout(() => { throw new RangeError('at the end'); }, 1);
process.exitCode = 3;
