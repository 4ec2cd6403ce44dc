const { performance } = require('perf_hooks');
console.log(process.uptime() > 0, performance.now() > 0, performance.timeOrigin <= Date.now(), process.hrtime.bigint() > 0n);
console.log(Math.abs(performance.timeOrigin + performance.now() - Date.now()) < 1000, process.cpuUsage().user > 0);
const { heapUsed, rss, external } = process.memoryUsage();
console.log(heapUsed < 20e6, rss < 200e6, external < 20e6, performance.nodeTiming.name, performance.getEntries());
console.log(performance.eventLoopUtilization().idle, require('v8').getHeapStatistics().number_of_native_contexts);
