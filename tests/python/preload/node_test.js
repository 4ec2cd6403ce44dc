//: {"status": "error", "hide": ["duration_ms [\\d.]+", "\\([\\d.]+ms\\)", "[\\d.]+ms"]}
const { test, describe, it } = require('node:test');
const assert = require('node:assert');
test('good', () => assert.equal(1, 1));
describe('a suite', () => {
  it('is bad', () => assert.equal(1, 2));
  it.skip('is skipped', () => {});
});
