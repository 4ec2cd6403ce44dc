"""Traces of calls, as a collector receives them."""

import gzip
import json
import re
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import server as servers
from by_hand import CLIENT, by_hand, post, python, run
from faults import NO_POOL, configuration
from operators import ANY_PORT, admin_of, free_port, get, values
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from server import listening, until

pytestmark = pytest.mark.any_engine

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
STAGES = ["queue", "checkout", "limit", "run"]
OF_RUN = ["unpack", "spawn", "program"]


class Collector:
    """The messages that an endpoint has received, read by the library of the protocol."""

    def __init__(self, url):
        self.url = url
        self.resources = []
        self.spans = []
        self.paths = set()
        self.headers = []

    def named(self, name):
        return [span for span in self.spans if span.name == name]

    def take(self, path, headers, body):
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest.FromString(body)
        self.paths.add(path)
        self.headers.append(dict(headers))
        for resource in request.resource_spans:
            self.resources.append(attributes(resource.resource))
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)


def attributes(thing):
    """The attributes of a span or a resource."""
    return {attribute.key: attribute.value.string_value for attribute in thing.attributes}


@contextmanager
def collecting(pause=0.0, status=200):
    """A collector, which may take its time or refuse."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            time.sleep(pause)
            if status == 200:
                collector.take(self.path, self.headers, body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@asynccontextmanager
async def traced(folder, endpoint, variables=(), **settings):
    """A server over HTTP whose traces go there, its listener for operators, and its log."""
    config = configuration(folder, **({"pool": NO_POOL, "admin": {"address": ANY_PORT}} | settings))
    wanted = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"} | dict(variables)
    path = folder / "log"
    with path.open("w") as log:
        started_by = ["env", *(f"{name}={value}" for name, value in wanted.items())]
        async with listening(folder, config, log, started_by) as url:

            def said():
                log.flush()
                return path.read_text()

            yield url, await admin_of(said), said


async def call(url, number, code, meta=(), **arguments):
    """Runs a program with more in its `_meta`."""
    message = python(number, code, **arguments)
    message["params"]["_meta"] = CLIENT | dict(meta)
    status, body = await post(url, json.dumps(message).encode())
    assert status == 200, body
    return json.loads(body)["result"]


async def test_a_call_continues_the_trace_of_its_client(tmp_path):
    with collecting() as collector:
        variables = {
            "OTEL_SERVICE_NAME": "sandboxes",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test,service.name=another",
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret",
            "OTEL_TRACES_EXPORTER": "otlp,none",
            "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }
        async with traced(tmp_path, collector.url, variables) as (url, admin, _):
            meta = {"traceparent": PARENT, "tracestate": "vendor=1", "baggage": "who=me"}
            code = "import time; time.sleep(0.3); print('printed', 'secret' * 2)"
            answer = await call(url, 1, code, meta, additional_files=[{"filename": "hidden.txt", "content": "hidden"}])
            await until(lambda: len(collector.named("program")) == 1, 10, "the spans of a call")
            (span,) = collector.named("tools/call execute_code")
            assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
            assert span.kind == Span.SPAN_KIND_SERVER and span.trace_state == "vendor=1"
            assert span.status.code == Status.STATUS_CODE_UNSET
            found = attributes(span)
            assert found == {
                "mcp.method.name": "tools/call",
                "mcp.protocol.version": "2026-07-28",
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "execute_code",
                "jsonrpc.request.id": "1",
                "network.transport": "tcp",
                "isolator.status": "success",
                "isolator.start": "cold",
            }
            stages = answer["_meta"]["isolator/receipt"]["ms"]
            for names, parent in [(STAGES, span), (OF_RUN, collector.named("run")[0])]:
                for name in names:
                    (stage,) = collector.named(name)
                    assert (stage.trace_id.hex(), stage.parent_span_id) == (TRACE, parent.span_id), name
                    took = (stage.end_time_unix_nano - stage.start_time_unix_nano) / 1e6
                    assert took == pytest.approx(stages[name], abs=0.01), name
                    assert parent.start_time_unix_nano <= stage.start_time_unix_nano, name
                    assert stage.end_time_unix_nano <= parent.end_time_unix_nano, name
                    assert not stage.attributes
            everything = str(collector.spans) + str(collector.resources)
            for secret in ("secretsecret", "time.sleep", "printed", "hidden", "who=me"):
                assert secret not in everything, secret

            # A program that fails, a tool that is not there, a parent that is none, and one that is not traced.
            await call(url, 2, "raise SystemExit(3)", {"traceparent": "00-nonsense-01"})
            unknown = python(3, "")
            unknown["params"] |= {"name": "my tool", "_meta": CLIENT}
            await post(url, json.dumps(unknown).encode(), name="my tool")
            await call(url, 4, "print(4)", {"traceparent": PARENT[:-1] + "0"})
            await until(lambda: len(collector.named("tools/call _OTHER")) == 1, 10, "the span of an unknown tool")
            failed = collector.named("tools/call execute_code")[1]
            assert attributes(failed)["error.type"] == "tool_error" and failed.status.code == Status.STATUS_CODE_ERROR
            assert failed.trace_id.hex() != TRACE and not failed.parent_span_id
            exported = "isolator_trace_spans_exported_total"
            await until(lambda: values(get(f"{admin}/metrics")[2])[exported] == len(collector.spans), 10, "all spans")
            assert values(get(f"{admin}/metrics")[2])["isolator_trace_spans_dropped_total"] == 0
        assert len(collector.named("tools/call execute_code")) == 2
        assert collector.paths == {"/v1/traces"} and collector.headers[0]["authorization"] == "secret"
        assert all({name.lower(): value for name, value in found.items()}["content-encoding"] == "gzip" for found in collector.headers)
        (resource,) = {tuple(sorted(found.items())) for found in collector.resources}
        resource = dict(resource)
        assert resource["service.name"] == "sandboxes" and resource["deployment.environment.name"] == "test"
        assert resource["service.version"]


async def test_a_host_s_calls_are_traced_and_the_last_spans_are_sent(tmp_path, monkeypatch):
    with collecting() as collector:
        variables = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=from-attributes",
        }
        monkeypatch.setattr(servers, "_PASSED_ON", [*servers._PASSED_ON, *variables])
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        config = configuration(tmp_path, pool=NO_POOL)
        with (tmp_path / "log").open("w") as log:
            async with by_hand(tmp_path, config, log) as server:
                await server.begin()
                message = python("it is " + "x" * 500, "print(1)")
                message["params"]["_meta"] = {"traceparent": PARENT}
                await server.send(message)
                await server.answer(message["id"], 30)
                # At the end of the input, they have waited less than five seconds.
        (span,) = collector.named("tools/call execute_code")
        found = attributes(span)
        assert (found["network.transport"], found["mcp.protocol.version"]) == ("pipe", "2025-11-25")
        assert span.trace_id.hex() == TRACE and len(found["jsonrpc.request.id"]) <= 128
        assert collector.named("program") and collector.resources[0]["service.name"] == "from-attributes"


@pytest.mark.parametrize("how", ["away", "slow", "refuses"])
async def test_no_call_waits_for_a_collector(tmp_path, how):
    bounds = {"OTEL_BSP_MAX_QUEUE_SIZE": "20", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "20"}
    bounds["OTEL_EXPORTER_OTLP_TIMEOUT"] = "60000" if how == "slow" else "1000"
    with collecting(pause=60 if how == "slow" else 0, status=503 if how == "refuses" else 200) as collector:
        endpoint = f"http://127.0.0.1:{free_port()}" if how == "away" else collector.url
        async with traced(tmp_path, endpoint, bounds) as (url, admin, said):
            for number in range(12):
                began = time.monotonic()
                await run(url, number, "print(1)")
                assert time.monotonic() - began < 5
            dropped = "isolator_trace_spans_dropped_total"
            await until(lambda: values(get(f"{admin}/metrics")[2])[dropped] > 20, 30, "spans that are counted")
            await until(lambda: "spans for the collector are lost" in said(), 30, "a line in the log")
            assert said().count("spans for the collector are lost") == 1 and "opentelemetry" not in said(), said()
            began = time.monotonic()
        # It has ended: the removal of sandboxes, and two seconds for the collector.
        assert time.monotonic() - began < 12


# Variables that are not right, and what the log says: each with its value and what is used in its place.
WRONG = {
    ("OTEL_TRACES_EXPORTER", "console,otlp"): 'value="console,otlp" used="otlp"',
    ("OTEL_TRACES_SAMPLER", "sometimes"): "'sometimes' in OTEL_TRACES_SAMPLER .* Using fallback sampler: ParentBased\\(AlwaysOn\\)",
    ("OTEL_TRACES_SAMPLER_ARG", "7"): "OTEL_TRACES_SAMPLER_ARG must be from 0 to 1 value=7.0 used=1",
    ("OTEL_EXPORTER_OTLP_COMPRESSION", "lz4"): "Ignoring value 'lz4' for OTEL_EXPORTER_OTLP_COMPRESSION",
    ("OTEL_BSP_MAX_QUEUE_SIZE", "9999999999"): 'OTEL_BSP_MAX_QUEUE_SIZE must be a whole number .* value="9999999999" used=65536',
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "many"): 'value="many" used=512',
    ("OTEL_BSP_EXPORT_TIMEOUT", "-1"): 'value="-1" used=30000',
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"): 'value="grpc" used="http/protobuf"',
    ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"): "OTEL_EXPORTER_OTLP_CERTIFICATE has no effect",
    ("OTEL_SDK_DISABLED", "yes"): "OTEL_SDK_DISABLED must be true or false",
}


async def test_an_invalid_variable_is_reported_at_startup(tmp_path):
    with collecting() as collector:
        async with traced(tmp_path, collector.url, dict(WRONG.keys())) as (url, _, said):
            log = said()
            for (name, _), told in WRONG.items():
                assert any("WARN" in line and re.search(told, line) for line in log.splitlines()), (name, told, log)
            await run(url, 1, "print(1)")
            await until(lambda: collector.named("program"), 10, "spans, by what is used instead")
            assert collector.resources[0]["service.name"] == "isolator"
            assert said().count("WARN") == log.count("WARN"), said()
        ratio = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "half"}
        async with traced(tmp_path, collector.url, ratio) as (_, _, said):
            assert "Falling back to default ratio: 1.0" in said() and "half" in said(), said()


async def test_without_a_collector_there_is_nothing(tmp_path):
    with collecting() as collector:
        for name, value, told in (
            ("OTEL_SDK_DISABLED", "True", None),
            ("OTEL_TRACES_EXPORTER", "none", None),
            ("OTEL_TRACES_EXPORTER", "console", 'value="console" used="none"'),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", " ", None),
            ("OTEL_TRACES_SAMPLER", "always_off", None),
        ):
            async with traced(tmp_path, collector.url, {name: value}) as (url, admin, said):
                await run(url, 1, "print(1)")
                has_metrics = "isolator_trace_spans" in get(f"{admin}/metrics")[2]
                assert has_metrics == (name == "OTEL_TRACES_SAMPLER")
                assert told in said() if told else "WARN" not in said(), said()
        assert not collector.spans
