"""openai-agents: an agent whose model is scripted."""

import json
from contextlib import asynccontextmanager

from agents import Model, ModelResponse, Runner, Usage, set_tracing_disabled
from checks import Told, main
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

# example
from agents import Agent
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
# end


@asynccontextmanager
async def connect(url):
    model = Script()
    set_tracing_disabled(True)
    # example
    if url:
        isolator = MCPServerStreamableHttp({"url": url}, client_session_timeout_seconds=60)
    else:
        isolator = MCPServerStdio({"command": "isolator", "args": ["serve"]}, client_session_timeout_seconds=60)
    async with isolator:
        agent = Agent("Assistant", model=model, mcp_servers=[isolator])
        # Here it can be used.
        # end
        yield OpenaiAgents(model, agent, isolator)


class Script(Model):
    """A model that calls one tool, and keeps what it is told then."""

    async def get_response(self, system_instructions, input, *others, **more):
        if isinstance(input, str) or input[-1].get("type") != "function_call_output":
            arguments = json.dumps(self.arguments)
            output = ResponseFunctionToolCall(
                call_id="call", name=self.tool, arguments=arguments, type="function_call"
            )
        else:
            self.answer = told(input[-1]["output"])
            text = ResponseOutputText(text="done", type="output_text", annotations=[])
            output = ResponseOutputMessage(
                id="done", content=[text], role="assistant", status="completed", type="message"
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *others, **more):
        raise NotImplementedError("nothing here streams")


def told(output):
    if isinstance(output, str):
        return Told(output)
    texts = [item["text"] for item in output if item["type"] == "input_text"]
    return Told("\n".join(texts), sum(item["type"] == "input_image" for item in output))


class OpenaiAgents:
    def __init__(self, model, agent, server):
        self.model, self.agent, self.server = model, agent, server

    async def ask(self, tool, arguments):
        self.model.tool, self.model.arguments = tool, arguments
        await Runner.run(self.agent, "Go.")
        return self.model.answer

    async def read(self, uri):
        return "".join(content.text for content in (await self.server.read_resource(uri)).contents)


main(connect, "openai-agents", "mcp")
