from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from noetl_chassis.clock import SystemClock
from noetl_contracts.ids import CommandId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.requests.facts import (
    CancelRequested,
    CommandLost,
    ExecutionRequested,
    Fact,
    FactBatch,
)
from noetl_messaging.memory.broker import MemoryBroker, StoredMessage
from noetl_messaging.memory.consumer import MemoryDelivery
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import Delivery
from noetl_planner.facts.fact_intake import ExecutionWork
from noetl_planner.shards.decision_telemetry import open_decision_span

BODY = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADER = "00-0af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"
OTHER = "00-1af7651916cd43dd8448eb211c80319c-d7ad6b7169203331-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def batch(*told: Fact, traceparent: str | None, request_id: str | None = None) -> FactBatch:
    return FactBatch(
        key="k",
        execution_id=ExecutionId("1"),
        tenant_id=TenantId("t"),
        organization_id=OrganizationId("o"),
        producer="p",
        facts=list(told),
        request_id=request_id,
        traceparent=traceparent,
    )


def delivery(traceparent: str) -> Delivery:
    declared = topology.declare_topology(shard_count=1, pools=("default",), projector_count=1)
    stored = StoredMessage(
        sequence=1,
        subject="s",
        message_id="m",
        data=b"",
        headers={"traceparent": traceparent},
    )
    broker = MemoryBroker(declared, SystemClock())
    return MemoryDelivery(broker, key=("a", "b"), stored=stored, delivered=1)


def span_of(exporter: InMemorySpanExporter, work: ExecutionWork) -> ReadableSpan:
    with open_decision_span(work, shard=3):
        pass
    (span,) = exporter.get_finished_spans()
    return span


def linked(span: ReadableSpan) -> list[str]:
    return [f"{link.context.span_id:016x}" for link in span.links]


def parent_of(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def test_facts_go_on_in_their_executions_trace_and_link_to_every_message(
    exporter: InMemorySpanExporter,
) -> None:
    work = ExecutionWork(
        batches=[batch(traceparent=BODY), batch(traceparent=OTHER)], deliveries=[delivery(HEADER)]
    )
    span = span_of(exporter, work)
    assert span.kind is SpanKind.CONSUMER
    assert parent_of(span) == "b7ad6b7169203331"
    assert linked(span) == ["c7ad6b7169203331", "d7ad6b7169203331"]


def test_a_request_that_is_decided_on_at_once_is_a_part_of_it(
    exporter: InMemorySpanExporter,
) -> None:
    asked = batch(ExecutionRequested(path="a"), traceparent=BODY, request_id="r")
    span = span_of(exporter, ExecutionWork(batches=[asked], deliveries=[]))
    assert span.kind is SpanKind.INTERNAL
    assert parent_of(span) == "b7ad6b7169203331"


def test_a_report_of_a_loss_goes_on_in_the_executions_trace(
    exporter: InMemorySpanExporter,
) -> None:
    lost = CommandLost(command_id=CommandId("1"), attempt=1, reason="worker_lost")
    reported = batch(lost, traceparent=BODY, request_id="lost/1/1")
    span = span_of(exporter, ExecutionWork(batches=[reported], deliveries=[delivery(HEADER)]))
    assert parent_of(span) == "b7ad6b7169203331"
    assert linked(span) == ["c7ad6b7169203331"]


def test_what_is_asked_of_a_running_execution_is_linked_and_no_parent(
    exporter: InMemorySpanExporter,
) -> None:
    asked = batch(CancelRequested(reason="enough"), traceparent=OTHER, request_id="r")
    span = span_of(exporter, ExecutionWork(batches=[asked], deliveries=[delivery(HEADER)]))
    assert parent_of(span) is None
    assert linked(span) == ["c7ad6b7169203331", "d7ad6b7169203331"]
