#!/usr/bin/env node
'use strict';
//: {"args": ["a"]}
console.log((function () { return this; })(), typeof this, process.argv[2]);
try { undeclared = 1; } catch (error) { console.log(error.message); }
