//: {"status": "error", "hide": ["(?s)<--- Last few GCs.*"]}
const rows = [];
for (;;) rows.push({ a: rows.length, b: [1, 2, 3] });
