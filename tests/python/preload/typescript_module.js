//: {"files": {"typed.ts": "export type A = number; export const a: A = 5; export enum E { X }", "plain.ts": "const b: string = 'b'; module.exports = { b };"}, "hide": ["\\(node:\\d+\\)"]}
console.log(require('./plain.ts').b);
import('./typed.ts').then(console.log, (error) => console.log(error.code, error.message));
