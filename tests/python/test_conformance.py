"""The official conformance suite. Accepted findings are in tests/node/excluded.yml, with reasons."""

import re

import node
import pytest
from server import ROOT, configuration, listening

pytestmark = pytest.mark.any_engine

EXCLUDED = ROOT / "tests/node/excluded.yml"
REVISIONS = ["2025-11-25", "2026-07-28"]

# A few that need nothing of the suite's own, so that it can't pass by running nothing.
PASSED = {
    "2025-11-25": {"server-initialize", "ping"},
    "2026-07-28": {"sep-2164-resource-not-found", "input-required-result-unsupported-methods"},
}
PASSED_BY_BOTH = {
    "completion-complete",
    "dns-rebinding-protection",
    "resources-list",
    "server-sse-multiple-streams",
    "tools-list",
}


@pytest.fixture(scope="module")
async def url(anyio_backend, tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    async with listening(folder, configuration(folder, node={"name": "n1"})) as url:
        yield url


async def conformance(*arguments):
    result = await node.run("conformance", *arguments)
    return result.returncode, result.stdout.decode() + result.stderr.decode()


async def check(url, *which):
    code, said = await conformance(
        "server", "--url", url, *which, "--expected-failures", str(EXCLUDED)
    )
    assert code == 0, said
    return said


@pytest.mark.parametrize("revision", REVISIONS)
async def test_every_requirement_of_a_revision_is_met_except_for_the_exclusions(url, revision):
    said = await check(url, "--requirements", revision)
    passed = set(re.findall(r"✓ (\S+): [1-9]\d* passed, 0 failed", said))
    assert PASSED[revision] | PASSED_BY_BOTH <= passed, said


async def test_every_optional_check_passes_except_for_the_exclusions(url):
    everything = await scenarios("--server")
    demanded = set()
    for revision in REVISIONS:
        demanded |= await scenarios("--requirements", revision)
    beside = everything - demanded
    assert {"http-header-validation", "server-session-lifecycle"} <= beside
    for scenario in sorted(beside):
        await check(url, "--scenario", scenario)


async def scenarios(*which):
    code, said = await conformance("list", *which)
    assert code == 0, said
    return set(re.findall(r"^  - (\S+)", said.partition("Client scenarios")[0], re.MULTILINE))
