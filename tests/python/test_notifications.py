"""Notifications about changed snippets: on request, or without one in older revisions."""

import os
import re
import signal

import anyio
import pytest
from mcp import MCPError
from mcp.client.subscriptions import ResourcesListChanged, ResourceUpdated, ToolsListChanged
from mcp_types import (
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    ToolListChangedNotification,
)
from server import configuration, isolator

# The client warns of what newer revisions have given up.
pytestmark = [pytest.mark.any_engine, pytest.mark.filterwarnings("ignore:resources/")]

WITHIN_S = 20
GREET = "snippet://greet"


@pytest.fixture
def snippets(tmp_path):
    folder = tmp_path / "snippets"
    folder.mkdir()
    (folder / "greet.py").write_text("# Greets.\n")
    return folder


@pytest.fixture(params=["stdio", "http"])
def serve(request, tmp_path, snippets):
    def serve(mode, on_message=None):
        config = configuration(tmp_path, promptsDir="snippets", pool={"size": 0, "hot": 0})
        return isolator(tmp_path / "state", f"{request.param}-{mode}", config, on_message)

    return serve


async def names(client):
    schema = (await client.list_tools()).tools[0].input_schema
    listed = (await client.list_resources()).resources
    in_resources = [r.name for r in listed if r.uri.startswith("snippet://")]
    description = schema["properties"]["snippet_name"]["description"]
    assert re.findall(r"^- (\w+): ", description, re.M) == in_resources
    return in_resources


async def test_a_subscriber_is_notified_of_what_it_asked_for(serve, snippets):
    async with serve("auto") as server:
        client = server.client
        wanted = [GREET, "isolator://pool", "snippet://none"]
        everything = {"tools_list_changed": True, "resources_list_changed": True}
        with anyio.fail_after(WITHIN_S):
            async with (
                client.listen(**everything, resource_subscriptions=wanted) as one,
                client.listen(resources_list_changed=True) as two,
            ):
                assert one.honored.tools_list_changed and one.honored.resources_list_changed
                # The pools change with every call, and the other is not there.
                assert one.honored.resource_subscriptions == [GREET]
                assert not two.honored.tools_list_changed

                (snippets / "new.js").write_text("// New.\n")
                assert {await anext(one), await anext(one)} == {ToolsListChanged(), ResourcesListChanged()}
                assert await anext(two) == ResourcesListChanged()
                assert await names(client) == ["greet", "new"]

                # What is said of it is in its first line, which stays.
                (snippets / "greet.py").write_text("# Greets.\nprint('hello')\n")
                assert await anext(one) == ResourceUpdated(GREET)
                for path in snippets.iterdir():
                    path.unlink()
                assert await anext(two) == ResourcesListChanged()
                assert await names(client) == []


async def test_a_subscriber_is_notified_of_the_end(serve):
    async with serve("auto") as server:
        with anyio.fail_after(WITHIN_S):
            async with server.client.listen(tools_list_changed=True) as told:
                os.kill(server.pid, signal.SIGTERM)
                # That the stream has ended without being lost is the server's word for it.
                assert [event async for event in told] == []


async def test_an_older_client_is_notified_without_a_subscription(serve, snippets):
    told = []

    async def tell(message):
        told.append(message)

    def seen(kind):
        return [message for message in told if isinstance(message, kind)]

    async with serve("legacy", tell) as server:
        client = server.client
        await client.subscribe_resource(GREET)
        # The stream of notifications may not be open yet.
        for number in range(WITHIN_S):
            (snippets / f"new_{number}.js").write_text("// New.\n")
            await anyio.sleep(1)
            if seen(ToolListChangedNotification) and seen(ResourceListChangedNotification):
                break
        else:
            raise AssertionError(told)
        assert "new_0" in await names(client)
        assert not seen(ResourceUpdatedNotification)

        (snippets / "greet.py").write_text("# Greets.\nprint('hello')\n")
        with anyio.fail_after(WITHIN_S):
            while not seen(ResourceUpdatedNotification):
                await anyio.sleep(0.1)
        assert {message.params.uri for message in seen(ResourceUpdatedNotification)} == {GREET}

        await client.unsubscribe_resource(GREET)
        (snippets / "greet.py").write_text("# Greets everybody.\n")
        told.clear()
        with anyio.fail_after(WITHIN_S):
            while not seen(ResourceListChangedNotification):
                await anyio.sleep(0.1)
        await anyio.sleep(0.5)
        assert not seen(ResourceUpdatedNotification)


async def test_resources_without_notifications_can_not_be_subscribed_to(serve):
    async with serve("legacy") as server:
        for uri, code in [("isolator://pool", -32602), ("snippet://none", -32002), ("x", -32002)]:
            with pytest.raises(MCPError) as raised:
                await server.client.subscribe_resource(uri)
            assert raised.value.code == code, uri
