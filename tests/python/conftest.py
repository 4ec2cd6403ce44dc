"""Fixtures: a server in each era of the protocol, over each transport, shared by the tests of a file."""

import engine
import pytest

# Or its assertions would not say what they found.
pytest.register_assert_rewrite("server")

from server import isolator  # noqa: E402


def pytest_collection_modifyitems(config, items):
    """Leaves out what is of another engine: there is nothing of it to be tested."""

    def is_of_this(item):
        mark = item.get_closest_marker("only_on")
        return mark is None or engine.KIND in mark.args

    others = [item for item in items if not is_of_this(item)]
    config.hook.pytest_deselected(items=others)
    items[:] = filter(is_of_this, items)


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


# "auto" asks the server what it speaks and gets the stateless protocol; "legacy" is the handshake
# that most hosts still begin with.
@pytest.fixture(scope="module", params=["stdio-auto", "stdio-legacy", "http-auto", "http-legacy"])
async def server(request, anyio_backend, tmp_path_factory):
    transport, mode = request.param.split("-")
    async with isolator(tmp_path_factory.mktemp("state"), mode, transport=transport) as server:
        server.mode = mode
        yield server
