// Within a frame or two, for the code may be compiled in between.
let depth = 0;
function deep() { depth++; deep(); }
try { deep(); } catch {}
console.log(Math.round(depth / 1000));
