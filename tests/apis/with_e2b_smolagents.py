"""smolagents: a CodeAgent that runs its code in a sandbox of E2B. Its model is scripted."""

import asyncio

from frameworks import main
from smolagents import ChatMessage, Model, tool
from smolagents.models import MessageRole

# example
from smolagents import CodeAgent
# end


class Script(Model):
    """A model that writes these programs, one in each step."""

    def __init__(self, *programs):
        super().__init__()
        self.programs = list(programs)
        self.seen = []

    def generate(self, messages, **more):
        self.seen.append(str(messages[-1].content))
        return ChatMessage(MessageRole.ASSISTANT, f"Thought: Go.\n<code>\n{self.programs.pop(0)}\n</code>")


@tool
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: The number.
    """
    return 2 * number


def example():
    model = Script("x = double(20)\nprint('x is', x)", "1 / 0", "final_answer({'x': x + 2})")
    task = "Go."
    # example
    with CodeAgent(tools=[double], model=model, executor_type="e2b", verbosity_level=0) as agent:
        answer = agent.run(task)
    # end
    assert answer == {"x": 42}, answer
    assert "x is 40" in model.seen[1] and "ZeroDivisionError" in model.seen[2], model.seen


def values():
    """Values of many types come back, and an image as one."""
    program = "from PIL import Image\nImage.new('RGB', (7, 5))"
    model = Script(program, "final_answer(({1, 2}, b'bytes', 2.5))")
    with CodeAgent(tools=[], model=model, executor_type="e2b", verbosity_level=0) as agent:
        assert agent.run("Go.") == ({1, 2}, b"bytes", 2.5)


async def a_code_agent():
    await asyncio.to_thread(example)


async def values_of_many_types():
    await asyncio.to_thread(values)


main([a_code_agent, values_of_many_types], "smolagents", "e2b-code-interpreter")
