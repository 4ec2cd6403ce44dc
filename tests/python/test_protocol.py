"""The protocol without programs: versions, schemas, protocol errors."""

import base64

import jsonschema
import pytest
from mcp import MCPError
from server import ROOT

pytestmark = [pytest.mark.any_engine, pytest.mark.every_server]

INVALID_PARAMS = -32602

SESSION_TOOLS = ["open_session", "run_command", "rewind_session", "interrupt_session", "close_session"]


async def test_both_eras_of_the_protocol_are_spoken(server):
    expected = {"auto": "2026-07-28", "legacy": "2025-11-25"}
    assert server.client.protocol_version == expected[server.mode]
    assert server.client.server_info.name == "isolator"
    assert "sandbox" in server.client.instructions
    assert server.client.server_capabilities.tools is not None


async def test_the_server_and_its_tools_say_what_they_are(server):
    tools = (await server.client.list_tools()).tools
    assert server.client.server_info.title == "Isolator"
    usual = ["Execute code", "Check syntax", "Get the result of a long run"]
    of_sessions = ["Open a session", "Run a command", "Rewind a session", "Interrupt a session", "Close a session"]
    assert [tool.title for tool in tools] == usual + of_sessions
    for tool in tools:
        # Whatever a program does, it does to its own sandbox.
        assert tool.annotations.read_only_hint == (tool.title in usual)
        assert tool.annotations.destructive_hint == (tool.name == "close_session")
        assert not tool.annotations.open_world_hint
    for shown in [server.client.server_info, *tools]:
        (icon,) = shown.icons
        kind, _, data = icon.src.partition(",")
        assert (icon.mime_type, icon.sizes) == ("image/svg+xml", ["any"])
        assert kind == "data:image/svg+xml;base64"
        assert base64.b64decode(data) == (ROOT / "docs/icon.svg").read_bytes()


async def test_changes_are_announced_and_prompts_are_not(server):
    capabilities = server.client.server_capabilities
    assert capabilities.tools.list_changed and capabilities.resources.list_changed
    assert capabilities.resources.subscribe
    assert capabilities.completions is not None
    assert capabilities.prompts is None and capabilities.logging is None


async def test_the_tools_have_valid_schemas(server):
    tools = (await server.client.list_tools()).tools
    assert [tool.name for tool in tools] == ["execute_code", "check_syntax", "get_result", *SESSION_TOOLS]
    for tool in tools:
        for schema in (tool.input_schema, tool.output_schema):
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
    tool = tools[0]
    assert tool.input_schema["properties"]["language"]["enum"] == ["go", "javascript", "python"]
    for snippet in (ROOT / "prompts").iterdir():
        assert f"\n- {snippet.stem} " in tool.input_schema["properties"]["snippet_name"]["description"]
    expected = {
        "language",
        "entrypoint_code",
        "entrypoint_filename",
        "additional_files",
        "snippet_name",
        "args",
        "stdin",
        "env",
        "timeout",
    }
    assert expected <= tool.input_schema["properties"].keys()
    file = tool.input_schema["properties"]["additional_files"]["items"]
    assert file["required"] == ["filename", "content"]


async def test_a_bad_argument_is_an_answer_that_names_the_field(server):
    good = {"language": "python", "entrypoint_code": ""}
    for arguments, field in [
        ({}, "entrypoint_code"),
        (good | {"language": "cobol"}, "language"),
        (good | {"timeout": "soon"}, "timeout"),
        ({"snippet_name": "no_such_snippet"}, "snippet_name"),
        (good | {"additional_files": [{"filename": "../a", "content": ""}]}, "additional_files[0].filename"),
    ]:
        result = await server.call(**arguments)
        assert result.is_error, arguments
        data = result.structured_content
        assert (data["status"], data["field"]) == ("invalid_arguments", field), arguments
        assert result.content[0].text == f"Invalid arguments: {field}: {data['message']}"


@pytest.mark.parametrize("name", ["execute", "", "execute_code "])
async def test_an_unknown_tool_is_a_protocol_error(server, name):
    with pytest.raises(MCPError) as raised:
        await server.client.call_tool(name, {})
    assert raised.value.code == INVALID_PARAMS
    assert "execute_code" in raised.value.message
    assert raised.value.data["field"] == "name"


async def test_a_list_has_one_page(server):
    for page in [server.client.list_tools, server.client.list_resources]:
        assert (await page()).next_cursor is None
        with pytest.raises(MCPError) as raised:
            await page(cursor="2")
        assert raised.value.code == INVALID_PARAMS
