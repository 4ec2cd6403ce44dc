//: {"files": {"child.js": "process.on('message', (m) => { process.send([m, process.argv, process.execArgv, process.env.NODE_OPTIONS ?? null, process.env.ISOLATOR_PRELOAD ?? null, require('fs').readdirSync('/pro\\x63/self/fd').length, process._preload_modules]); process.disconnect(); });", "loud.sh": "echo $NODE_OPTIONS; echo err >&2; exit 3"}, "args": ["a"]}
const { fork, spawnSync, execFileSync, execSync, exec, spawn } = require('child_process');
const child = fork('./child.js', ['x']);
child.on('message', (message) => console.log('message', message));
child.send({ a: [1] });
child.on('exit', (code, signal) => {
  console.log('exit', code, signal);
  const look = 'console.log(process.argv, process.execArgv, Object.keys(process.env), Object.keys(require.cache), process.moduleLoadList.length > 10)';
  console.log(String(execFileSync(process.execPath, ['-e', look])), String(execFileSync('node', ['-p', 'process.env.NODE_OPTIONS'])));
  const { status, stdout, stderr } = spawnSync('sh', ['loud.sh']);
  console.log(status, String(stdout), String(stderr), String(execSync('env')), String(execSync('cat', { input: 'in' })));
  spawn('no-such-command').on('error', (error) => console.log(error.code, error.message));
  exec('exit 4', (error) => {
    console.log(error.code, error.message);
    const killed = spawn('sleep', ['30']);
    killed.on('exit', (code, signal) => console.log('killed', code, signal));
    killed.kill();
  });
  console.log(spawnSync('echo', ['inherited'], { stdio: 'inherit' }).status);
});
