//: {"status": "error", "hide": ["\\(node:\\d+\\)"], "files": {"other.mjs": "export const a = 1;"}}
import { b } from './other.mjs';
console.log(b);
