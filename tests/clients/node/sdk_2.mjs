// The official TypeScript SDK, version 2. It has no agent, so what it returns is what a program hands to its model.

import { main, toldByBlocks } from './checks.mjs'

// example
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio'
// end

async function connect(url) {
  // example
  const client = new Client({ name: 'my-agent', version: '1.0.0' })
  const transport = url
    ? new StreamableHTTPClientTransport(new URL(url))
    : new StdioClientTransport({ command: 'isolator', args: ['serve'] })
  await client.connect(transport)
  const options = { timeout: 60_000, onprogress: () => {}, resetTimeoutOnProgress: true }
  // end
  return {
    async ask(name, args, signal) {
      const result = await client.callTool({ name, arguments: args }, { ...options, signal })
      return toldByBlocks(result.content)
    },
    async read(uri) {
      const { contents } = await client.readResource({ uri })
      return contents.map((content) => content.text).join('')
    },
    close: () => client.close(),
  }
}

await main(connect, '@modelcontextprotocol/client')
