// The AI SDK: generateText with a model that is scripted.

import { main } from './checks.mjs'
import { MockLanguageModelV4 } from 'ai/test'

// example
import { createMCPClient } from '@ai-sdk/mcp'
import { Experimental_StdioMCPTransport as StdioMCPTransport } from '@ai-sdk/mcp/mcp-stdio'
import { generateText, isStepCount } from 'ai'
// end

async function connect(url) {
  const script = {}
  const model = new MockLanguageModelV4({ doGenerate: (options) => respond(script, options) })
  // example
  const client = await createMCPClient({
    transport: url ? { type: 'http', url } : new StdioMCPTransport({ command: 'isolator', args: ['serve'] }),
  })
  const tools = await client.tools()
  const run = (prompt, abortSignal) => generateText({ model, tools, prompt, abortSignal, stopWhen: isStepCount(10) })
  // end
  return {
    async ask(tool, args, signal) {
      Object.assign(script, { tool, arguments: args })
      await run('Go.', signal)
      return script.answer
    },
    async read(uri) {
      const { contents } = await client.readResource({ uri })
      return contents.map((content) => content.text).join('')
    },
    close: () => client.close(),
  }
}

// A model that calls one tool, and keeps what it is told then.
async function respond(script, { prompt }) {
  const usage = { inputTokens: {}, outputTokens: {} }
  const last = prompt.at(-1)
  if (last.role !== 'tool') {
    const call = { type: 'tool-call', toolCallId: 'call', toolName: script.tool, input: JSON.stringify(script.arguments) }
    return { content: [call], finishReason: { unified: 'tool-calls' }, usage, warnings: [] }
  }
  script.answer = told(last.content[0].output)
  return { content: [{ type: 'text', text: 'done' }], finishReason: { unified: 'stop' }, usage, warnings: [] }
}

function told(output) {
  if (output.type !== 'content') return { text: JSON.stringify(output.value), pictures: 0 }
  const texts = output.value.map((part) => (part.type === 'text' ? part.text : JSON.stringify(part)))
  const pictures = output.value.filter((part) => part.type === 'file' && part.mediaType.startsWith('image/'))
  return { text: texts.join('\n'), pictures: pictures.length }
}

await main(connect, 'ai', '@ai-sdk/mcp')
