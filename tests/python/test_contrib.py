"""Each file of `contrib/` is what the program that reads it expects, and the server is what they expect of it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import stopped
from apis import post
from by_hand import run, tool
from faults import NO_POOL, configuration
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from operators import get, operated, prometheus
from server import BINARY, ROOT, listening, process_with, until

pytestmark = pytest.mark.any_engine

ALERTS = ROOT / "contrib/prometheus/isolator-alerts.yml"
DASHBOARD = ROOT / "contrib/grafana/isolator.json"
UNITS = ROOT / "contrib/systemd"


def ran(*command, **options):
    """Runs a program, and returns its exit code and what it said."""
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, **options
    )
    return done.returncode, done.stdout


@pytest.mark.release
def test_each_alert_fires_when_it_should_and_not_before():
    code, said = ran("promtool", "check", "rules", ALERTS)
    assert code == 0, said
    cases = Path(__file__).parent / "alerts.yml"
    code, said = ran("promtool", "test", "rules", cases)
    assert code == 0, said
    alerts = re.findall(r"- alert: (\w+)", ALERTS.read_text())
    assert len(alerts) > 5
    text = cases.read_text()
    for alert in alerts:
        assert re.search(rf"alertname: {alert}\b[^\n]*exp_alerts: \[\]", text), f"{alert} is not tested when it must not fire"
        assert re.search(rf"alertname: {alert}\n(.*\n)+? *exp_alerts:\n *- exp_labels", text), f"{alert} is not tested"


@pytest.mark.release
def test_the_dashboard_fits_the_model_of_grafana():
    plugins.register_default_plugins()
    written = json.loads(DASHBOARD.read_text())
    read = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(written)))

    def lost(ours, theirs, place):
        """The keys that are not in Grafana's model, which adds its own defaults."""
        if isinstance(ours, dict):
            for key, value in ours.items():
                if isinstance(theirs, dict) and key in theirs:
                    yield from lost(value, theirs[key], f"{place}.{key}")
                else:
                    yield f"{place}.{key}"
        elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
            for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                yield from lost(one, other, f"{place}[{number}]")
        elif ours != theirs:
            yield f"{place}: {ours} is read as {theirs}"

    assert list(lost(written, read, "")) == []
    numbers = [panel["id"] for panel in written["panels"]]
    assert len(set(numbers)) == len(numbers)
    places = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in written["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(places)) == len(places) and max(x for x, _ in places) < 24, "panels overlap"


# What has no series as long as nothing fails.
EMPTY_IF_ALL_IS_WELL = {"isolator_execution_failures_total", "isolator_engine_call_errors_total"}


def queries():
    """All of the dashboard, with values for its variables."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    found += [one["expr"] for one in dashboard["annotations"]["list"]]
    assert len(found) > 40
    for query in found:
        query = query.replace("$instance", ".*").replace("$language", ".*").replace("$__rate_interval", "20s")
        assert "$" not in query, query
        yield query


def metrics_of(query):
    return set(re.findall(r"\b(?:isolator|mcp_server|http_server|process)_[a-z_]+", query))


def known(text):
    """The names of series that metrics can have: also of those that have no value yet."""
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        if kind == "histogram":
            yield from (f"{name}_{part}" for part in ("bucket", "sum", "count"))
        else:
            yield name


@pytest.mark.release
async def test_a_prometheus_answers_every_query_of_the_dashboard_and_of_the_alerts(tmp_path):
    settings = {"pool": {"size": 2, "hot": 1}, "audit": {"path": "audit.jsonl"}, "apis": {"sandboxFusion": {}}}
    (tmp_path / "scraping").mkdir()
    async with operated(tmp_path, **settings) as (url, admin, _):
        async with prometheus(tmp_path / "scraping", admin, rules=[ALERTS]) as scraping:
            for number, code in enumerate(["print(1)", "raise SystemExit(3)"] * 6):
                await run(url, number, code)
            host, port = url.split("/")[2].split(":")
            for _ in range(3):
                ran = await post((host, int(port)), "/run_code", {"code": "print(1)", "language": "python"})
                assert ran.status == 200, ran.body
            session = (await tool(url, 100, "open_session", language="python"))["session"]
            await tool(url, 101, "execute_code", session=session, entrypoint_code="1 + 1")

            def is_scraped():
                return scraping.sum("isolator_waiting_memory_bytes") > 0 and scraping.sum("isolator_cells_total") > 0

            await until(is_scraped, 40, "a scrape of everything")
            # The memory of what waits is not in the first answer.
            names = set(known(get(f"{admin}/metrics")[2]))
            # Rates need two scrapes with everything in them.
            await until(lambda: scraping.sum("rate(isolator_cells_total[20s])") >= 0, 20, "a second scrape")
            without = []
            for query in queries():
                assert metrics_of(query) <= names, f"{metrics_of(query) - names} are not there: {query}"
                if not scraping.query(query) and not metrics_of(query) & EMPTY_IF_ALL_IS_WELL:
                    without.append(query)
            # No server has started again.
            assert without == [query for query in queries() if "changes(process_start_time_seconds" in query]

            def rules():
                groups = json.loads(get(f"{scraping.url}/api/v1/rules")[2])["data"]["groups"]
                return [rule for group in groups for rule in group["rules"]]

            await until(lambda: {rule["health"] for rule in rules()} == {"ok"}, 20, f"rules that were evaluated: {rules()}")
            for rule in rules():
                assert metrics_of(rule["query"]) <= names, rule
                assert rule["state"] in ("inactive", "pending"), rule


@pytest.mark.release
def test_systemd_accepts_the_units(tmp_path):
    for unit in UNITS.glob("*.service"):
        # Where the program is, and where its variables are, on this machine.
        text = unit.read_text().replace("/usr/bin/isolator", BINARY)
        (tmp_path / unit.name).write_text(text)
    variables = os.environ | {"SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    units = sorted(tmp_path.glob("*.service"))
    assert len(units) == 2
    for rootless in (False, True):
        if rootless:
            folder = tmp_path / "isolator.service.d"
            folder.mkdir()
            shutil.copy(UNITS / "rootless.conf", folder)
        # It names lines that it does not understand, and its exit code stays 0.
        assert ran("systemd-analyze", "verify", "--man=no", *units, env=variables) == (0, "")
    # From 0, which is nothing at all, to 100, which is a service without any protection.
    code, said = ran("systemd-analyze", "security", "--offline=true", "--threshold=55", "--no-pager", tmp_path / "isolator.service")
    assert code == 0, said


@pytest.mark.parametrize("kind", ["file", "abstract"])
async def test_a_service_manager_is_notified_of_the_state_of_a_server(tmp_path, kind):
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name if kind == "file" else f"\0{name}")
        manager.settimeout(30)
        variable = f"NOTIFY_SOCKET={'@' if kind == 'abstract' else ''}{name}"
        config = configuration(tmp_path, pool=NO_POOL)
        with (tmp_path / "log").open("w") as log:
            async with listening(tmp_path, config, log, started_by=["env", variable]) as url:
                said = manager.recv(4096).decode().splitlines()
                assert said == ["READY=1", f"STATUS=serving clients at {url}"]
                assert (await run(url, 1, "print(1)"))[0] == 200
                wrong = "; the new configuration is wrong and not used, see the log"
                for text, ended in [(config.read_text(), ""), ("nonsense", wrong)]:
                    config.write_text(text)
                    since = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
                    os.kill(process_with(variable), signal.SIGHUP)
                    begun = dict(line.split("=") for line in manager.recv(4096).decode().splitlines())
                    assert begun.pop("RELOADING") == "1" and since <= int(begun.pop("MONOTONIC_USEC")), begun
                    assert begun == {"STATUS": "loading the configuration again"}
                    said = manager.recv(4096).decode().splitlines()
                    assert said == ["READY=1", f"STATUS=serving clients at {url}{ended}"]
        assert manager.recv(4096).decode().splitlines() == ["STOPPING=1", "STATUS=stopping"]


def signs_of_life(manager, seconds):
    """How many come in this time, after those that are waiting."""
    manager.setblocking(False)
    with suppress(BlockingIOError):
        while manager.recv(4096):
            pass
    found, until_then = 0, time.monotonic() + seconds
    while (left := until_then - time.monotonic()) > 0:
        manager.settimeout(left)
        with suppress(TimeoutError):
            found += manager.recv(4096) == b"WATCHDOG=1"
    return found


async def test_a_service_manager_gets_signs_of_life_only_while_the_server_can_serve(tmp_path):
    watched = ["env", f"NOTIFY_SOCKET={tmp_path / 'notify'}", "WATCHDOG_USEC=900000"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        async with listening(tmp_path, configuration(tmp_path, pool=NO_POOL), started_by=watched) as url:
            assert signs_of_life(manager, 1.5) >= 2
            pid = process_with(watched[1])
            # The thread that accepts connections, and those that do all else.
            for which in ("main", "others"):
                command = [sys.executable, stopped.__file__, str(pid), which]
                with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stopping:
                    assert stopping.stdout.readline() == "stopped\n"
                    assert signs_of_life(manager, 1.2) <= 1, which
                assert stopping.returncode == 0
                assert signs_of_life(manager, 1.5) >= 2, which
            assert (await run(url, 1, "print(1)"))[0] == 200
