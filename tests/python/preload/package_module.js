//: {"preloaded": false, "files": {"package.json": "{\"type\": \"module\", \"name\": \"mine\", \"exports\": {\".\": \"./main.js\", \"./part\": \"./part.js\"}, \"imports\": {\"#inner\": \"./part.js\"}}", "part.js": "export const x = import.meta.url"}}
import { x } from './part.js';
import { x as inner } from '#inner';
import { x as own } from 'mine/part';
console.log(x, inner === x, own === x, import.meta.url, typeof module);
