// A thread has the name of the first until it has given itself its own, which may be a moment later.
//: {"hide": ["/docker/\\w+", "MainThread|SignalInspector"]}
const fs = require('fs');
const status = fs.readFileSync('/pro\x63/self/status', 'latin1');
const wanted = /^(Umask|Tracer|Uid|Gid|Groups|Threads|Sig[^Q]|Shd|Cap|NoNew|Seccomp|Cpus|CoreD)/;
console.log(status.split('\n').filter((line) => wanted.test(line)).join('\n'));
for (const name of ['limits', 'oom_score_adj', 'cgroup', 'coredump_filter']) console.log(fs.readFileSync(`/pro\x63/self/${name}`, 'latin1'));
const stat = fs.readFileSync('/pro\x63/self/stat', 'latin1').replace(/.*\) /, '').split(' ');
console.log(Number(stat[2]) === process.pid, fs.readFileSync(`/pro\x63/${process.ppid}/comm`, 'latin1'));
for (const task of fs.readdirSync('/pro\x63/self/task')) console.log(fs.readFileSync(`/pro\x63/self/task/${task}/comm`, 'latin1').trim());
