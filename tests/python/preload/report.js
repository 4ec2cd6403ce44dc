const report = process.report.getReport();
console.log(Object.keys(report), report.header.cwd, report.libuv.filter((handle) => handle.is_active).map((handle) => handle.type).sort());
console.log(report.header.glibcVersionRuntime, report.userLimits, report.javascriptStack.message);
