from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from noetl_chassis.observability import instruments, names, span_recording, tracing
from noetl_planner.api.http.request_spans import TracedApi

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


async def ask(
    path: str = "/api/executions/1",
    *parents: str,
    status: int = 200,
    method: str = "GET",
    kind: str = "http",
) -> str | None:
    """Ask an application behind the door; return the trace that it saw."""
    seen: list[str | None] = []

    async def app(scope: dict[str, Any], _receive: Any, send: Any) -> None:
        seen.append(tracing.get_traceparent())
        scope["path_template"] = "/api/executions/{execution_id}"
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(_message: Any) -> None: ...

    async def receive() -> Any: ...

    headers = [(b"accept", b"*/*"), *((b"traceparent", parent.encode()) for parent in parents)]
    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "scheme": "http",
        "headers": headers,
    }
    await TracedApi(app)(scope, receive, send)
    return seen[0]


async def test_a_request_is_a_servers_span_in_its_clients_trace(
    exporter: InMemorySpanExporter,
) -> None:
    seen = await ask("/api/executions/1", PARENT)
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind) == ("GET /api/executions/{execution_id}", SpanKind.SERVER)
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    assert span.context is not None
    assert seen == f"00-{PARENT.split('-')[1]}-{span.context.span_id:016x}-01"
    assert dict(span.attributes or {}) == {
        "http.request.method": "GET",
        "url.path": "/api/executions/1",
        "url.scheme": "http",
        "http.response.status_code": 200,
        "http.route": "/api/executions/{execution_id}",
    }


@pytest.mark.parametrize("parents", [(), ("nonsense",), (PARENT, PARENT)])
async def test_without_one_good_header_a_trace_begins(
    exporter: InMemorySpanExporter, parents: tuple[str, ...]
) -> None:
    await ask("/api/executions/1", *parents)
    (span,) = exporter.get_finished_spans()
    assert span.parent is None


async def test_only_a_servers_own_failure_is_one(exporter: InMemorySpanExporter) -> None:
    await ask(status=404)
    await ask(status=503)
    refused, failed = exporter.get_finished_spans()
    assert refused.status.status_code is StatusCode.UNSET
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "503"


async def test_a_word_of_a_clients_own_is_no_name(exporter: InMemorySpanExporter) -> None:
    await ask(method="BREW")
    (span,) = exporter.get_finished_spans()
    assert span.name == "_OTHER /api/executions/{execution_id}"


async def test_probes_have_no_spans(exporter: InMemorySpanExporter) -> None:
    await ask("/health", PARENT)
    await ask(kind="lifespan")
    assert exporter.get_finished_spans() == ()


async def test_without_anybody_to_tell_the_clients_trace_goes_on(
    exporter: InMemorySpanExporter,
) -> None:
    with span_recording.suspend_span_recording():
        assert await ask("/api/executions/1", PARENT) == PARENT
        assert await ask("/api/executions/1") is None
    assert exporter.get_finished_spans() == ()
    assert tracing.get_traceparent() is None


async def test_the_token_of_a_callback_is_in_no_span(exporter: InMemorySpanExporter) -> None:
    await ask(f"/api/callbacks/{'ab' * 32}", method="POST")
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["url.path"] == "/api/callbacks/***"


async def test_a_request_is_measured_by_route_and_class_of_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[tuple[str, Any]] = []

    def record(metric: names.Metric, _value: float, *, labels: Any) -> None:
        measured.append((metric.name, labels))

    monkeypatch.setattr(instruments, "record_measurement", record)
    await ask("/api/executions/1", status=503, method="STEAL")
    await ask("/livez")
    labels = {"method": "_OTHER", "route": "/api/executions/{execution_id}", "status": "5xx"}
    assert measured == [("noetl_http_request_duration_seconds", labels)]
