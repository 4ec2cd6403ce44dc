//: {"args": ["one", "two words", "", "ü", "-x", "--", "--inspect"], "hide": ["\\(node:\\d+\\)"]}
const fs = require('fs');
console.log(process.argv, process.argv0, process.execArgv, process.execPath, process.title);
console.log(Object.entries(process.env), process.cwd(), process.version, process.arch, process.exitCode);
console.log(process._preload_modules, Object.getOwnPropertyDescriptor(process, '_preload_modules'));
console.log(process.allowedNodeEnvironmentFlags.size, process.features, process.release.name, process.config.variables.napi_build_version);
console.log(Object.getOwnPropertyNames(process), Object.getOwnPropertySymbols(process));
console.log(process.eventNames(), process.listenerCount('warning'), process.getMaxListeners(), process.domain);
console.log(process.umask(), process.getuid(), process.getgid(), process.getgroups(), process.pid > 1, process.ppid > 1);
console.log(process.stdin.isTTY, process.stdout.isTTY, process.stdout.writable, process.stdout.constructor.name, process.stdin.constructor.name);
console.log(process.connected, process.channel, process.debugPort, process.noDeprecation, process.throwDeprecation, process.traceDeprecation);
console.log(process.sourceMapsEnabled, process.report.directory, process.report.signal, process.permission, process.finalization);
console.log(fs.readFileSync('/pro\x63/self/comm', 'latin1'), process.emitWarning.length, process.constrainedMemory() > 0);
console.log(process.getActiveResourcesInfo(), process._getActiveHandles().length, process._getActiveRequests().length);
