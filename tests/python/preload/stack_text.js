function where() { return new Error('here').stack; }
console.log(where());
console.log(await_stack());
function await_stack() { return (async () => { throw new Error('x'); })().catch((error) => console.log(error.stack)); }
Error.prepareStackTrace = (error, sites) => sites.map((site) => [site.getFileName(), site.getLineNumber(), site.getFunctionName(), site.isToplevel()]);
console.log(new Error('x').stack);
Error.prepareStackTrace = undefined;
Error.stackTraceLimit = 100;
console.log(new Error('all').stack);
function deep() { return deep() + 1; }
try { deep(); } catch (error) { console.log(error.name, error.message); }
console.trace('traced');
