from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.support.calls import site

from noetl_chassis.observability import tracing
from noetl_worker.domain.failures import build_error
from noetl_worker.tools.calls.call import Call, Outcome, RequestMade, Timeout
from noetl_worker.tools.calls.call_spans import add_traceparent, run_in_span

URL_WITH_LOGIN = "https://ada:hunter2@api.example:8443/orders/7?key=hunter2"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def a_call(kind: str, **fields: object) -> Call:
    return Call(
        site=site(),
        task="fetch",
        kind=kind,
        attempt=2,
        visit=1,
        fields=fields,
        input={},
        auth=None,
        timeout=Timeout(total=1.0),
    )


async def span_of(exporter: InMemorySpanExporter, call: Call, outcome: Outcome) -> ReadableSpan:
    async def run(_call: Call) -> Outcome:
        return outcome

    assert await run_in_span(call, run) is outcome
    (span,) = exporter.get_finished_spans()
    return span


async def test_a_request_is_a_clients_span_without_its_secrets(
    exporter: InMemorySpanExporter,
) -> None:
    made = RequestMade(method="POST", url=URL_WITH_LOGIN, status=503)
    error = build_error("server_error", "no")
    span = await span_of(
        exporter, a_call("http", method="post"), Outcome(error=error, request=made)
    )
    assert (span.name, span.kind) == ("POST", SpanKind.CLIENT)
    assert dict(span.attributes or {}) == {
        "noetl.task": "fetch",
        "noetl.attempt": 2,
        "http.request.method": "POST",
        "url.full": "https://api.example:8443/orders/7",
        "server.address": "api.example",
        "http.response.status_code": 503,
        "error.type": "server_error",
    }
    assert span.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(
    ("call", "name", "kind"),
    [
        (a_call("postgres"), "postgresql", SpanKind.CLIENT),
        (a_call("nats", operation="kv_get"), "tool nats", SpanKind.CLIENT),
        (a_call("nats", operation="js_publish"), "tool nats", SpanKind.PRODUCER),
        (a_call("python"), "tool python", SpanKind.INTERNAL),
        (a_call("duckdb"), "tool duckdb", SpanKind.INTERNAL),
    ],
)
async def test_what_waits_for_another_system_is_its_client(
    exporter: InMemorySpanExporter, call: Call, name: str, kind: SpanKind
) -> None:
    span = await span_of(exporter, call, Outcome(data=1))
    assert (span.name, span.kind) == (name, kind)
    assert span.status.status_code is StatusCode.UNSET


def test_headers_name_the_current_span_unless_the_task_has_named_one(
    exporter: InMemorySpanExporter,
) -> None:
    headers: dict[str, str] = {}
    own = {"TraceParent": "mine"}
    add_traceparent(headers)
    assert headers == {}
    with tracing.start_span("work", attributes={}):
        add_traceparent(headers)
        add_traceparent(own)
    (span,) = exporter.get_finished_spans()
    assert span.context is not None
    assert headers["traceparent"].split("-")[1:3] == [
        f"{span.context.trace_id:032x}",
        f"{span.context.span_id:016x}",
    ]
    assert own == {"TraceParent": "mine"}
