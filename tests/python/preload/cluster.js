const cluster = require('cluster');
if (cluster.isPrimary) {
  console.log(cluster.settings, process.env.NODE_UNIQUE_ID);
  const worker = cluster.fork();
  worker.on('message', (message) => { console.log(message); worker.disconnect(); });
  cluster.on('exit', (_, code) => console.log('exit', code, cluster.settings.exec, cluster.settings.execArgv));
} else {
  process.send(['worker', process.argv, process.execArgv, cluster.worker.id]);
}
