"""The schemas of the tools, as the frameworks and the interfaces of models take them. Each has its own validator."""

import copy
import json

import anthropic.types
import jsonschema
import node
import pydantic
import pytest
from agents.strict_schema import ensure_strict_json_schema
from google.genai import _mcp_utils as gemini
from google.genai import types as gemini_types
from openai.lib._pydantic import _ensure_strict_json_schema as openai_strict
from openai.types.responses import FunctionToolParam
from server import ROOT, configuration, isolator

pytestmark = pytest.mark.any_engine

# What all of them have in common.
KEYWORDS = {"type", "enum", "minimum", "maximum", "items", "properties", "required", "description"}
TYPES = {"object", "array", "string", "integer", "number", "boolean"}

SESSION_TOOLS = ["open_session", "run_command", "rewind_session", "interrupt_session", "close_session"]


@pytest.fixture(scope="module")
async def tools(anyio_backend, tmp_path_factory):
    """All tools that there are."""
    folder = tmp_path_factory.mktemp("schemas")
    config = configuration(folder, tools={"testCode": {"enabled": True}}, pool={"size": 0, "hot": 0})
    async with isolator(folder, "stdio-auto", config) as server:
        tools = (await server.client.list_tools()).tools
    assert [tool.name for tool in tools] == ["execute_code", "check_syntax", "get_result", *SESSION_TOOLS, "test_code"]
    return tools


def schemas(tools):
    return [schema for tool in tools for schema in (tool.input_schema, tool.output_schema)]


def parts(schema):
    """A schema and all that it is made of."""
    yield schema
    for part in [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
        yield from parts(part)


async def test_schemas_use_only_common_keywords(tools):
    for part in [part for schema in schemas(tools) for part in parts(schema)]:
        assert part.keys() <= KEYWORDS, part
        assert part["type"] in TYPES, part
        # Gemini refuses objects without properties, arrays without items, and empty names in lists.
        assert (part["type"] == "object") == bool(part.get("properties")), part
        assert (part["type"] == "array") == ("items" in part), part
        assert all(part.get("enum", ["some"])), part
        assert set(part.get("required", [])) <= part.get("properties", {}).keys(), part
    for tool in tools:
        assert all("description" in property for property in tool.input_schema["properties"].values())


async def test_json_schema_accepts_the_schemas(tools):
    for schema in schemas(tools):
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.Draft7Validator.check_schema(schema)


async def test_ajv_accepts_the_schemas(tools):
    result = await node.run(str(ROOT / "tests/node/schemas.mjs"), input=json.dumps(schemas(tools)).encode())
    assert result.returncode == 0, result.stderr.decode()
    assert json.loads(result.stdout) == []


async def test_gemini_accepts_the_schemas_unchanged(tools):
    for tool in tools:
        (declaration,) = gemini.mcp_to_gemini_tool(tool).function_declarations
        assert set(declaration.parameters.properties) == set(tool.input_schema["properties"])
        for schema in (tool.input_schema, tool.output_schema):
            # This refuses what it does not know, and the conversion loses nothing.
            kept = gemini_types.JSONSchema.model_validate(schema).model_dump(exclude_none=True, mode="json")
            assert kept == schema


async def test_openai_accepts_the_schemas_in_strict_mode(tools):
    for tool in tools:
        for make_strict in (lambda schema: openai_strict(schema, path=(), root=schema), strict_as_agents_do):
            strict = make_strict(copy.deepcopy(tool.input_schema))
            for part in parts(strict):
                if part["type"] == "object":
                    assert part["additionalProperties"] is False, part
                    assert part["required"] == list(part["properties"]), part
            function = {"type": "function", "name": tool.name, "parameters": strict, "strict": True}
            pydantic.TypeAdapter(FunctionToolParam).validate_python(function)


def strict_as_agents_do(schema):
    """The conversion that the Agents SDK applies to the tools of an MCP server: it refuses objects that take any name."""
    return ensure_strict_json_schema(schema, _reject_open_objects=True)


async def test_anthropic_accepts_the_schemas(tools):
    for tool in tools:
        given = {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
        assert pydantic.TypeAdapter(anthropic.types.ToolParam).validate_python(given)
        strict = anthropic.transform_schema(tool.input_schema)
        assert strict["properties"].keys() == tool.input_schema["properties"].keys()


async def test_the_files_are_described_for_clients_that_lose_their_schema(tools):
    files = tools[0].input_schema["properties"]["additional_files"]
    assert all(name in files["description"] for name in files["items"]["properties"])
