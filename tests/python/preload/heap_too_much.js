//: {"status": "out_of_memory"}
const rows = [];
for (;;) rows.push({ a: rows.length, b: [1, 2, 3] });
