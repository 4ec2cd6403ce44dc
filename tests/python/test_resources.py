"""Resources that a client can read."""

import json

import anyio
import pytest
from mcp import MCPError
from mcp_types import ResourceTemplateReference
from programs import HELLO
from server import ROOT, receipt

pytestmark = [pytest.mark.any_engine, pytest.mark.every_server]

SNIPPETS = {path.stem: path for path in sorted((ROOT / "prompts").iterdir())}
TYPES = {".py": "text/x-python", ".js": "text/javascript", ".go": "text/x-go"}
TEMPLATE = "snippet://{name}"

# Before, there was a code for it alone.
NOT_FOUND = {"auto": -32602, "legacy": -32002}
INTERNAL_ERROR, INVALID_PARAMS = -32603, -32602


async def test_all_resources_are_listed_with_their_types(server):
    resources = (await server.client.list_resources()).resources
    expected = {f"isolator://{name}": "application/json" for name in ["languages", "pool", "sessions"]}
    expected |= {f"snippet://{name}": TYPES[path.suffix] for name, path in SNIPPETS.items()}
    assert {resource.uri: resource.mime_type for resource in resources} == expected
    assert all(resource.description for resource in resources)
    template, results, files = (await server.client.list_resource_templates()).resource_templates
    assert template.uri_template == TEMPLATE
    assert results.uri_template.startswith("isolator://runs/")
    assert files.uri_template.startswith("isolator://sessions/")


async def test_what_is_listed_can_be_read(server):
    for resource in (await server.client.list_resources()).resources:
        (content,) = (await server.client.read_resource(resource.uri)).contents
        assert (content.uri, content.mime_type) == (resource.uri, resource.mime_type)


async def test_a_snippet_is_its_source(server):
    for name, path in SNIPPETS.items():
        (content,) = (await server.client.read_resource(f"snippet://{name}")).contents
        assert content.text == path.read_text()


async def test_the_languages_say_what_a_program_finds(server):
    # The image is looked for when the first sandbox is made.
    with anyio.fail_after(60):
        while not all("digest" in language for language in (await languages(server)).values()):
            await anyio.sleep(0.2)
    python = (await languages(server))["python"]
    assert python["digest"].startswith("sha256:")
    assert "pandas" in python["description"]
    assert python["default_file"] == "main.py"
    assert python["policies"] == []
    assert python["limits"]["timeout_seconds"] == 60
    assert python["limits"]["memory_mb"] == 256
    assert list(await languages(server)) == ["go", "javascript", "python"]


async def languages(server):
    found = await read_json(server, "isolator://languages")
    return {language["name"]: language for language in found["languages"]}


async def test_the_pool_counts_what_has_run(server):
    # The end of what was given up before is not waited for by anybody else.
    with anyio.fail_after(60):
        while (await read_json(server, "isolator://pool"))["running"]:
            await anyio.sleep(0.1)
    before = (await read_json(server, "isolator://pool"))["pools"]["python"]["starts"]
    result = await server.call(language="python", entrypoint_code=HELLO["python"])
    status = await read_json(server, "isolator://pool")
    after = status["pools"]["python"]["starts"]
    start = receipt(result)["start"]
    assert after == before | {start: before[start] + 1}
    assert status["pools"]["python"]["size"] == 2
    assert (status["running"], status["waiting"]) == (0, 0)


async def read_json(server, uri):
    (content,) = (await server.client.read_resource(uri)).contents
    return json.loads(content.text)


@pytest.mark.parametrize(
    "uri", ["isolator://nothing", "snippet://none", "snippet://../Makefile", "file:///etc/passwd", "x"]
)
async def test_an_unknown_resource_is_an_error_that_names_it(server, uri):
    with pytest.raises(MCPError) as raised:
        await server.client.read_resource(uri)
    assert raised.value.code == NOT_FOUND[server.mode]
    assert raised.value.data["uri"] == uri


async def test_nothing_is_kept_by_clients_because_it_may_change_at_any_time(server):
    answers = [
        await server.client.list_tools(),
        await server.client.list_resources(),
        await server.client.list_resource_templates(),
        await server.client.read_resource("isolator://pool"),
    ]
    if server.mode == "auto":
        assert {(answer.ttl_ms, answer.cache_scope) for answer in answers} == {(0, "private")}


async def test_names_of_snippets_are_completed(server):
    def values(result):
        return result.completion.values

    async def complete(template, argument, begun):
        reference = ResourceTemplateReference(uri=template)
        return await server.client.complete(reference, {"name": argument, "value": begun})

    result = await complete(TEMPLATE, "name", "csv_")
    assert values(result) == [name for name in SNIPPETS if name.startswith("csv_")] != []
    assert result.completion.total == len(values(result)) and not result.completion.has_more
    assert values(await complete(TEMPLATE, "name", "")) == list(SNIPPETS)
    for nothing in [("name", "no_such"), ("other", "")]:
        assert values(await complete(TEMPLATE, *nothing)) == []
    assert values(await complete("other://{name}", "name", "")) == []
