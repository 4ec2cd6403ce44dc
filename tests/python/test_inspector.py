"""The official Inspector, by its command line. It checks the schemas against the rules of models and hosts."""

import json
import re
import subprocess
from contextlib import asynccontextmanager

import node
import pytest
from server import BINARY, command, configuration, environment, listening

pytestmark = [pytest.mark.any_engine, pytest.mark.release]

ERAS = ["legacy", "modern"]

SESSION_TOOLS = ["open_session", "run_command", "rewind_session", "interrupt_session", "close_session"]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A configuration with a token and every tool."""
    folder = tmp_path_factory.mktemp("config")
    line = subprocess.run([BINARY, "token", "inspector"], capture_output=True, check=True, text=True)
    (folder / "tokens").write_text(line.stdout)
    (folder / "prompts").mkdir()
    (folder / "prompts/greet.py").write_text("# Greets.\nprint('hello')\n")
    (folder / "token").write_text(re.search(r"isolator_[0-9a-f]{64}", line.stderr)[0])
    return configuration(
        folder,
        promptsDir="prompts",
        http={"tokens": "tokens"},
        tools={"testCode": {"enabled": True}},
        pool={"size": 1, "hot": 1},
    )


@asynccontextmanager
async def over_stdio(config, state):
    program, *arguments = command(config)
    entry = {"command": program, "args": arguments, "env": environment(state)}
    hosts = state / "mcp.json"
    hosts.write_text(json.dumps({"mcpServers": {"isolator": entry}}))
    yield ["--config", str(hosts), "--server", "isolator"]


@asynccontextmanager
async def over_http(config, state):
    token = (config.parent / "token").read_text()
    async with listening(state, config) as url:
        yield [url, "--transport", "http", "--header", f"Authorization: Bearer {token}"]


@pytest.fixture(scope="module", params=[over_stdio, over_http])
async def reached(request, anyio_backend, config, tmp_path_factory):
    """The options with which Inspector reaches the server."""
    async with request.param(config, tmp_path_factory.mktemp("state")) as arguments:
        yield arguments


async def inspect(reached, era, *arguments, code=0):
    result = await node.run("inspector", "--cli", *reached, "--protocol-era", era, "--quiet", *arguments)
    assert result.returncode == code, result.stderr.decode()
    return json.loads(result.stdout)


@pytest.mark.parametrize("era", ERAS)
async def test_the_schemas_suit_every_host(reached, era):
    tools = (await inspect(reached, era, "--method", "tools/list", "--strict"))["tools"]
    assert [tool["name"] for tool in tools] == ["execute_code", "check_syntax", "get_result", *SESSION_TOOLS, "test_code"]
    assert "\n- greet: Greets" in tools[0]["inputSchema"]["properties"]["snippet_name"]["description"]


@pytest.mark.parametrize("era", ERAS)
async def test_tools_are_called(reached, era):
    call = ["--method", "tools/call", "--tool-name", "execute_code", "--tool-args-json"]
    result = await inspect(reached, era, *call, '{"snippet_name": "greet"}')
    assert result["structuredContent"]["stdout"] == "hello\n"
    program = {"language": "python", "entrypoint_code": "raise SystemExit(3)"}
    # Inspector's own code for a tool that says it has failed.
    result = await inspect(reached, era, *call, json.dumps(program), code=5)
    assert result["structuredContent"]["exit_code"] == 3


@pytest.mark.parametrize("era", ERAS)
async def test_resources_are_listed_and_read(reached, era):
    listed = (await inspect(reached, era, "--method", "resources/list"))["resources"]
    expected = ["isolator://languages", "isolator://pool", "isolator://sessions", "snippet://greet"]
    assert [resource["uri"] for resource in listed] == expected
    templates = await inspect(reached, era, "--method", "resources/templates/list")
    assert templates["resourceTemplates"][0]["uriTemplate"] == "snippet://{name}"
    for uri, text in {"snippet://greet": "print('hello')", "isolator://pool": '"hot"'}.items():
        (content,) = (await inspect(reached, era, "--method", "resources/read", "--uri", uri))["contents"]
        assert content["uri"] == uri and text in content["text"]


async def test_requests_without_a_token_are_rejected(config, tmp_path):
    async with listening(tmp_path, config) as url:
        stranger = [url, "--transport", "http", "--stored-auth-only"]
        result = await node.run("inspector", "--cli", *stranger, "--method", "tools/list")
    assert result.returncode != 0
    assert json.loads(result.stderr)["error"]["code"] == "auth_required", result.stderr.decode()
