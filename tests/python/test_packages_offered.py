"""Packages as hosts see them before any program has one: schemas, resources, completions, counts."""

import json

import anyio
import package_sets
import pytest
from mcp import MCPError
from mcp_types import ResourceTemplateReference
from package_index import Index
from package_sets import SETS, packages, python_set, serving

pytestmark = pytest.mark.any_engine

TOOLS = {"execute_code", "check_syntax", "test_code", "open_session"}
TEMPLATE = "isolator://packages/{name}"

# No index listens there.
NOWHERE = {"python": "http://127.0.0.1:9/simple/", "javascript": "http://127.0.0.1:9/"}


async def offered(server):
    """The argument of each tool that has it."""
    tools = (await server.client.list_tools()).tools
    arguments = {tool.name: tool.input_schema["properties"].get("packages") for tool in tools}
    return {name: argument for name, argument in arguments.items() if argument}


async def read(server, uri):
    (content,) = (await server.client.read_resource(uri)).contents
    return json.loads(content.text)


async def test_names_are_in_the_schemas_where_nothing_else_can_be_asked_for(sets):
    found = await offered(sets)
    assert set(found) == TOOLS
    for tool, argument in found.items():
        wanted = [name for name, made in SETS.items() if tool != "test_code" or made["language"] == "python"]
        assert argument["items"]["enum"] == sorted(wanted), tool


async def test_without_packages_nothing_is_offered_and_requests_are_explained(tmp_path):
    config = package_sets.config(tmp_path)
    async with serving(tmp_path, config) as server:
        assert await offered(server) == {}
        templates = (await server.client.list_resource_templates()).resource_templates
        assert TEMPLATE not in {template.uri_template for template in templates}
        data = (await server.fails("print(1)", "text")).structured_content
        assert data["status"] == "invalid_arguments" and "there are no sets" in data["message"], data
        assert server.store.sets() == []


async def test_on_demand_any_text_can_be_given(tmp_path):
    settings = {"onDemand": {"enabled": True, "allow": ["alpha", "types-*"]}}
    config = package_sets.config(tmp_path, {"text": python_set("alpha")}, NOWHERE, **settings)
    async with serving(tmp_path, config) as server:
        found = await offered(server)
        assert set(found) == TOOLS and "enum" not in found["execute_code"]["items"]
        assert "alpha, types-*" in found["execute_code"]["description"]
        assert (await read(server, "isolator://languages"))["packages_on_demand"] == ["alpha", "types-*"]


async def test_a_set_is_a_resource_whose_name_is_completed(sets):
    await sets.are("ready")
    await sets.are("ready", language="javascript")
    found = await read(sets, "isolator://packages/text")
    assert found["state"] == "ready" and found["packages"]["alpha"] == "1.1", found
    assert found["requirements"] == SETS["text"]["requirements"]
    template = ResourceTemplateReference(type="ref/resource", uri=TEMPLATE)
    completed = await sets.client.complete(template, {"name": "name", "value": "te"})
    assert completed.completion.values == ["text"]
    with pytest.raises(MCPError):
        await read(sets, "isolator://packages/none")
    counts = (await read(sets, "isolator://pool"))["packages"]
    assert (counts["named"], counts["ready"], counts["building"]) == (len(SETS), len(SETS), 0)
    # Also those of several sets that were asked for together.
    assert counts["sets"] == len(sets.store.sets()) >= len(SETS) and counts["bytes"] > 0


async def test_older_hosts_are_notified_when_a_set_is_ready(tmp_path):
    told = []

    async def on_message(message):
        told.append(type(getattr(message, "root", message)).__name__)

    with Index(packages()) as index:
        index.delay_s = 0.5
        config = package_sets.config(tmp_path, {"tiny": python_set("gamma")}, {"python": index.python()}, {"python"})
        async with serving(tmp_path, config, kind="stdio-legacy", on_message=on_message) as server:
            await server.are("ready")
            with anyio.fail_after(30):
                while "ToolListChangedNotification" not in told:
                    await anyio.sleep(0.05)
