const http = require('http');
const server = http.createServer((request, response) => response.end(request.url));
server.listen(0, '127.0.0.1', async () => {
  const { port } = server.address();
  console.log(await (await fetch(`http://127.0.0.1:${port}/path`)).text(), process.getActiveResourcesInfo().length > 0);
  try { await fetch('http://example.org'); } catch (error) { console.log(error.message, error.cause.code); }
  server.closeAllConnections();
  server.close(() => console.log('closed'));
});
