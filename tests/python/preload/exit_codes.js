const { spawnSync } = require('child_process');
const forms = ['process.exit()', 'process.exit(3)', 'process.exit("4")', 'process.exitCode = 5', 'process.exitCode = 5; process.exit()',
  'process.exit(256)', 'process.exit(-1)', 'process.exit(1.5)', 'process.exit("x")', 'process.exit(null)', 'process.abort()',
  'process.kill(process.pid, "SIGTERM"); setTimeout(() => {}, 1000)', 'process.on("exit", () => { process.exitCode = 9 })', 'process.reallyExit(2)',
  'await new Promise(() => {})', 'throw 1'];
for (const code of forms) {
  const { status, signal, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', code]);
  console.log(code, status, signal, String(stderr).split('\n')[0]);
}
