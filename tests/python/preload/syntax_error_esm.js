//: {"status": "error", "hide": ["\\(node:\\d+\\)"]}
import fs from 'fs';
import { nothing } from 'fs';
await 1 +;
