//: {"preloaded": false, "args": ["a"]}
import { argv } from 'node:process';
console.log(argv, import.meta.url, await Promise.resolve(5));
