import pytest
from msgspec import structs
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.working import command_of

from noetl_chassis.observability import span_recording
from noetl_chassis.observability.tracing import get_traceparent
from noetl_worker.commands import command_progress

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_command_goes_on_in_the_trace_that_it_came_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    step = {"step": "s", "tool": []}
    with command_progress.start_command_span(structs.replace(command_of(step), traceparent=PARENT)):
        traceparent = get_traceparent()
    (span,) = exporter.get_finished_spans()
    assert traceparent is not None
    assert traceparent.split("-")[1] == PARENT.split("-")[1]
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    provider.shutdown()


def test_without_a_trace_nothing_is_handed_on() -> None:
    assert get_traceparent() is None


def test_without_anybody_to_tell_a_trace_keeps_its_identity() -> None:
    step = {"step": "s", "tool": []}
    with (
        span_recording.suspend_span_recording(),
        command_progress.start_command_span(structs.replace(command_of(step), traceparent=PARENT)),
    ):
        outer = get_traceparent()
        with command_progress.start_command_span(command_of(step)):
            inner = get_traceparent()
    assert outer is not None
    assert inner is not None
    assert {item.split("-")[1] for item in (outer, inner)} == {PARENT.split("-")[1]}
    assert len({outer, inner, PARENT}) == 3
    assert {item.split("-")[3] for item in (outer, inner)} == {"01"}
    assert get_traceparent() is None


def test_without_anybody_to_tell_a_first_span_begins_a_trace() -> None:
    with (
        span_recording.suspend_span_recording(),
        command_progress.start_command_span(command_of({"step": "s", "tool": []})),
    ):
        traceparent = get_traceparent()
    assert traceparent is not None
    assert traceparent.endswith("-01")


def test_a_command_consumes_a_message_and_links_to_its_sending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    sent_by = PARENT.replace("b7ad6b7169203331", "c7ad6b7169203331")
    step = {"step": "s", "tool": []}
    with command_progress.start_command_span(
        structs.replace(command_of(step), traceparent=PARENT), sent_by=sent_by
    ):
        pass
    (span,) = exporter.get_finished_spans()
    assert span.kind is trace.SpanKind.CONSUMER
    assert [f"{link.context.span_id:016x}" for link in span.links] == ["c7ad6b7169203331"]
    provider.shutdown()
