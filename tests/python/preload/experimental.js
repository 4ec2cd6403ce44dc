//: {"hide": ["\\(node:\\d+\\)"]}
const { DatabaseSync } = require('node:sqlite');
const database = new DatabaseSync(':memory:');
console.log(database.prepare('select 1 as one').all());
