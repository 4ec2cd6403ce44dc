//: {"preloaded": false}
// An interpreter that was started ahead is older than its program.
const { performance } = require('perf_hooks');
const seconds = [process.uptime(), performance.now() / 1000, performance.mark('a').startTime / 1000];
seconds.push(new Event('b').timeStamp / 1000, (Date.now() - performance.timeOrigin) / 1000);
console.log(seconds.every((second) => second > 0 && second < 2), process.hrtime.bigint() > 0n);
console.log(Math.abs(performance.timeOrigin + performance.now() - Date.now()) < 1000, process.cpuUsage().user > 0);
const { heapUsed, rss, external } = process.memoryUsage();
console.log(heapUsed < 20e6, rss < 200e6, external < 20e6, performance.nodeTiming.name);
console.log(performance.eventLoopUtilization().idle, require('v8').getHeapStatistics().number_of_native_contexts);
