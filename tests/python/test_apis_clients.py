"""Public clients and agent frameworks that speak E2B's API.

A script in `tests/apis` for each of them runs checks with its own methods, against a server over HTTP, with scripted models.
`tests/apis/expected.toml` has their versions and the checks that can't work. A difference is a fault, or a change to write there.
"""

import json
import os
import tomllib
from contextlib import asynccontextmanager

import anyio
import pytest
import scope
from certificates import certificate
from operators import free_port
from server import ROOT, configuration, listening
from test_clients import marked

pytestmark = pytest.mark.any_engine

FOLDER = ROOT / "tests/apis"
EXPECTED = tomllib.loads((FOLDER / "expected.toml").read_text())
# The newest SDKs of both languages, and the frameworks that need most of the API and are installed quickly.
QUICK = ["e2b", "e2b_js", "e2b_smolagents", "e2b_openai_agents"]
CLIENTS = list(EXPECTED) if scope.EVERYTHING else QUICK
# The clients that know only the names of hosts, with TLS.
BY_NAME = ["e2b_litellm"]
DOMAIN = "sandbox.test"

SETTINGS = {"sessions": {"memoryMB": 16384}, "requests": {"maxRunning": 8}}
# The first call of all has to install the client.
WITHIN_S = 600
AT_ONCE = 2
KEY = "e2b_" + "0" * 40


@pytest.fixture(scope="module")
async def outcomes(anyio_backend, tmp_path_factory):
    """The output of every client, by its name. Several of them run at once."""
    outcomes = {}
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def run(client):
        async with limiter:
            reach = by_name if client in BY_NAME else by_address
            outcomes[client] = await reach(client, tmp_path_factory.mktemp(client))

    async with anyio.create_task_group() as tasks:
        for client in CLIENTS:
            tasks.start_soon(run, client)
    return outcomes


async def by_address(client, folder):
    """One address for all, without names and TLS."""
    async with listening(folder, configuration(folder, apis={"e2b": {}}, **SETTINGS)) as mcp:
        url = mcp.removesuffix("/mcp")
        return await printed(client, {"E2B_API_URL": url, "E2B_SANDBOX_URL": url})


async def by_name(client, folder):
    """A name for each port of each sandbox."""
    async with named(folder) as variables:
        return await printed(client, variables)


@asynccontextmanager
async def named(folder):
    """A server with names for the ports of its sandboxes, and the variables that a client needs to find it."""
    certificate(folder, DOMAIN, [DOMAIN, f"*.{DOMAIN}"])
    tls = {"certificate": str(folder / "certificate.pem"), "key": str(folder / "key.pem")}
    port = free_port()
    config = configuration(folder, apis={"e2b": {"domain": f"{DOMAIN}:{port}"}}, http={"tls": tls}, **SETTINGS)
    async with listening(folder, config, at=f"127.0.0.1:{port}"):
        yield {"E2B_DOMAIN": f"{DOMAIN}:{port}", "SSL_CERT_FILE": tls["certificate"]}


async def printed(client, variables):
    return await run([ROOT / "scripts/client", client], variables)


async def run(command, variables):
    """What a client has printed of its checks."""
    command = [str(part) for part in command]
    with anyio.fail_after(WITHIN_S):
        result = await anyio.run_process(command, check=False, env=os.environ | {"E2B_API_KEY": KEY} | variables)
    assert result.returncode == 0, result.stderr.decode()
    # The examples and the frameworks print something before.
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_of_e2b_does_what_its_table_says(outcomes, client):
    expected, found = EXPECTED[client], outcomes[client]
    assert found["versions"] == expected["versions"]
    assert found["checks"]
    assert {name: outcome for name, outcome in found["checks"].items() if outcome != "works"} == expected.get("fails", {})


async def test_the_newest_sdk_finds_sandboxes_by_the_names_of_their_ports(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {DOMAIN} api.{DOMAIN}\n")
    mounted = f'mount --bind "$HOSTS" /etc/hosts && exec {ROOT}/scripts/client --python e2b {FOLDER}/e2b_by_name.py'
    async with named(tmp_path) as variables:
        found = await run(["unshare", "--mount", "sh", "-c", mounted], variables | {"HOSTS": str(hosts)})
    assert found["checks"] == {"by_name (sync)": "works", "by_name (async)": "works"}


@pytest.mark.parametrize("client", EXPECTED)
def test_the_page_about_e2b_shows_the_code_that_was_tested(client):
    (script,) = [*FOLDER.glob(f"with_{client}.py"), *FOLDER.glob(f"node*/{client}.mjs")]
    page = (ROOT / "docs/e2b.md").read_text()
    for version in EXPECTED[client]["versions"].values():
        assert version in page, f"docs/e2b.md does not name version {version} of {client}"
    if example := marked(script):
        assert f"\n{example}\n```\n" in page, f"docs/e2b.md has no block with this part of {script}:\n{example}"
