"""The choice of tests for an engine and a kind of server, and the servers that they share."""

import engine
import pytest
import scope

# Without this, their assertions would not show the values.
pytest.register_assert_rewrite("server", "package_sets", "package_index")

import package_index  # noqa: E402
import package_sets  # noqa: E402
from kernel import Runner  # noqa: E402
from server import KINDS, configuration, isolator, shared  # noqa: E402


def pytest_collection_modifyitems(config, items):
    """Deselects what only another engine has, what the other engine's run tests, and what only a release needs."""

    def runs_here(item):
        only_on = item.get_closest_marker("only_on")
        if only_on is not None and engine.KIND not in only_on.args:
            return False
        if scope.EVERYTHING:
            return True
        if item.get_closest_marker("release") is not None:
            return False
        return only_on is not None or engine.KIND == "embedded" or item.get_closest_marker("any_engine") is None

    config.hook.pytest_deselected(items=[item for item in items if not runs_here(item)])
    items[:] = filter(runs_here, items)


# These share a server whose sets of packages take a while to build.
SHARE_SETS = {f"test_packages{name}.py" for name in ("", "_hostile", "_node", "_offered", "_on_demand")}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """The tests of a file run in one process, and those of files that share a costly server in one, too."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            scope = super()._split_scope(nodeid)
            return "sets" if scope.rpartition("/")[2] in SHARE_SETS else scope

    return Scheduling(config, log)


def pytest_generate_tests(metafunc):
    """Runs a test over one kind of server, or over each if it is marked."""
    if "server" in metafunc.fixturenames:
        is_marked = metafunc.definition.get_closest_marker("every_server") is not None
        is_for_each = scope.EVERYTHING or (is_marked and engine.KIND == "embedded")
        kinds = KINDS if is_for_each else KINDS[:1]
        metafunc.parametrize("server", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
async def server(request, anyio_backend, tmp_path_factory):
    """A server with its client, of the chosen kind. All tests of a process share it."""
    folder = tmp_path_factory.mktemp("server")
    async with shared(isolator(folder, request.param, configuration(folder))) as server:
        yield server


@pytest.fixture(scope="session")
async def sets(anyio_backend, tmp_path_factory):
    """A server with sets of packages from a real index and a real registry."""
    folder = tmp_path_factory.mktemp("sets")
    packages = package_sets.packages()
    with (
        package_index.pypiserver(packages, folder / "wheels") as python,
        package_index.verdaccio(packages, folder / "verdaccio") as javascript,
    ):
        config = package_sets.config(folder, package_sets.SETS, {"python": python, "javascript": javascript})
        async with shared(package_sets.serving(folder, config)) as server:
            yield server


@pytest.fixture
def runner(tmp_path):
    """The kernel of a Python session without a sandbox. After its end no process may be left."""
    runner = Runner(tmp_path)
    try:
        yield runner
    finally:
        assert runner.close() == 0
