process.on('SIGUSR2', (name, number) => {
  console.log(name, number);
  process.kill(process.pid, 'SIGINT');
});
process.on('SIGINT', () => {
  console.log('interrupted', process.listenerCount('SIGINT'));
  clearInterval(alive);
});
const alive = setInterval(() => {}, 1000);
process.kill(process.pid, 'SIGUSR2');
try {
  process.kill(process.pid, 'SIGNONE');
} catch (error) {
  console.log(error.message);
}
