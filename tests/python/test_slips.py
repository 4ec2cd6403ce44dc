"""Mistakes that models make in their calls: each is understood, or refused in one sentence."""

import anyio
import pytest
from server import configuration, isolator
from slips import SLIPS, TOLD

pytestmark = pytest.mark.any_engine


@pytest.fixture(scope="module")
async def call(anyio_backend, tmp_path_factory):
    """Calls a tool of a server that has all of them."""
    folder = tmp_path_factory.mktemp("slips")
    (folder / "prompts").mkdir()
    (folder / "prompts/greet.py").write_text("# Greets.\nimport sys\nprint('hello', *sys.argv[1:])\n")
    config = configuration(
        folder, promptsDir="prompts", tools={"testCode": {"enabled": True}}, pool={"size": 1, "hot": 0}
    )
    async with isolator(folder, "stdio-auto", config) as server:
        yield server.client.call_tool


async def one_after_the_other(items, check):
    """Checks all of them, and tells of each that fails."""
    wrong = []
    for item in items:
        with anyio.fail_after(60):
            problem = await check(item)
        if problem:
            wrong.append((item.what, problem))
    assert not wrong, "\n".join(f"{what}: {problem}" for what, problem in wrong)


async def test_unambiguous_mistakes_are_understood(call):
    assert len(SLIPS) >= 30

    async def check(slip):
        result = await call(slip.tool, slip.arguments)
        data = result.structured_content
        notes = data.get("notes", [])
        has = slip.has or {"stdout": slip.prints, "status": "success"}
        as_expected = result.is_error is False and has.items() <= data.items()
        is_noted = any(slip.note in note for note in notes) if slip.note else not notes
        if not as_expected or not is_noted:
            return data
        shown = "".join(block.text for block in result.content)
        return None if all(note in shown or note.replace('"', '\\"') in shown for note in notes) else shown

    await one_after_the_other(SLIPS, check)


async def test_ambiguous_mistakes_are_refused_in_one_sentence(call):
    async def check(told):
        result = await call(told.tool, told.arguments)
        data = result.structured_content
        text = result.content[0].text
        as_expected = (
            result.is_error
            and (data["status"], data["field"]) == ("invalid_arguments", told.field)
            and told.words in data["message"]
            and text == f"Invalid arguments: {told.field}: {data['message']}"
            and "\n" not in text
            and len(text) < 400
        )
        return None if as_expected else text

    await one_after_the_other(TOLD, check)
