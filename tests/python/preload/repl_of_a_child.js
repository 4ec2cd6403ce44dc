//: {"hide": ["[\\d.]+ms"], "files": {"in.js": "console.log(1 + 1)\n"}}
const { spawnSync } = require('child_process');
for (const args of [['-i'], ['-'], ['in.js'], ['--check', 'in.js'], ['--input-type=module'], ['--test', 'in.js']]) {
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { input: '1 + 1\n' });
  console.log(args, status, String(stdout).replace(/duration_ms.*/g, '').replace(/.*Welcome.*/, ''), String(stderr).replace(/\(node:\d+\)/, ''));
}
