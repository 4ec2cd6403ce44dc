//: {"preloaded": false, "hide": ["\\(node:\\d+\\)"]}
interface Point { x: number }
const point: Point = { x: 5 };
console.log(point satisfies Point, __filename);
