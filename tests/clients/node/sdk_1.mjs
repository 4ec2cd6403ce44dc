// The official TypeScript SDK, version 1. It has no agent, so what it returns is what a program hands to its model.

import { main, toldByBlocks } from './checks.mjs'

// example
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
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
      const params = { name, arguments: args }
      const result = await client.callTool(params, undefined, { ...options, signal })
      return toldByBlocks(result.content)
    },
    async read(uri) {
      const { contents } = await client.readResource({ uri })
      return contents.map((content) => content.text).join('')
    },
    close: () => client.close(),
  }
}

await main(connect, '@modelcontextprotocol/sdk')
