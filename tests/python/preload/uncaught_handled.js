//: {"hide": ["\\(node:\\d+\\)"]}
process.on('uncaughtExceptionMonitor', (error, origin) => console.log('monitor', error.message, origin));
process.on('uncaughtException', (error, origin) => console.log('caught', error.message, origin));
process.on('unhandledRejection', (reason, promise) => console.log('rejected', reason, promise));
process.on('rejectionHandled', () => console.log('handled late'));
const late = Promise.reject(new Error('late').message);
setTimeout(() => late.catch(() => {}), 10);
setTimeout(() => console.log('goes on'), 30);
throw new Error('first');
