"""What a process sends to a collector, through the real exporters to a real receiver."""

import subprocess
import sys

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.support.otlp import attributes, collecting

# A process of its own: the providers of one are set once.
PROGRAM = """
import logging, sys
import structlog
from noetl_chassis import telemetry
from noetl_chassis.observability import instruments, names, tracing
from noetl_chassis.observability.tracing import SpanKind

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SIBLING = "00-0af7651916cd43dd8448eb211c80319c-d7ad6b7169203331-01"
LINKED = "00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"
with telemetry.start_telemetry(service="outbox", instance="o-1", otlp_endpoint=sys.argv[1]):
    instruments.add_to_counter(names.OUTBOX_PUBLISHED, 3, labels={names.OUTCOME: "published"})
    with tracing.start_span(
        "work", attributes={"a": 1}, parent=PARENT, kind=SpanKind.CONSUMER, links=[LINKED, "bad"]
    ):
        structlog.get_logger("own").warning("moved", rows=3, password="hunter2", nothing=None)
        with tracing.start_publication_span(
            "noetl.events.3.t.o", messages=2, origins=[None, PARENT]
        ):
            logging.getLogger("some.library").error("of %s", "a library")
        for subject, origins in (
            ("noetl.commands.a", [PARENT, SIBLING]), ("noetl.ingest.a", [PARENT, LINKED])
        ):
            with tracing.start_publication_span(subject, messages=2, origins=origins):
                pass
    logging.getLogger("urllib3.connectionpool").error("the collector is away")
"""


def test_spans_lines_and_metrics_reach_a_collector() -> None:
    with collecting() as collector:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", PROGRAM, collector.url],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    (work,) = collector.named("work")
    assert work.kind == Span.SPAN_KIND_CONSUMER
    assert work.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert work.parent_span_id.hex() == "b7ad6b7169203331"
    assert [link.trace_id.hex() for link in work.links] == ["1af7651916cd43dd8448eb211c80319c"]
    (sent,) = collector.named("send noetl.events")
    assert sent.kind == Span.SPAN_KIND_PRODUCER
    assert sent.parent_span_id.hex() == "b7ad6b7169203331"
    assert attributes(sent)["messaging.batch.message_count"] == 2

    (same_trace,) = collector.named("send noetl.commands")
    assert same_trace.parent_span_id == work.parent_span_id
    assert [link.span_id.hex() for link in same_trace.links] == [
        "b7ad6b7169203331",
        "d7ad6b7169203331",
    ]
    (two_traces,) = collector.named("send noetl.ingest")
    assert two_traces.parent_span_id == work.span_id
    assert len({link.trace_id for link in two_traces.links}) == 2

    moved, library = collector.lines
    assert moved.body.string_value == "moved"
    assert moved.severity_text == "WARNING"
    assert moved.trace_id == work.trace_id
    assert moved.span_id == work.span_id
    assert attributes(moved) == {"rows": 3, "password": "***"}
    assert library.body.string_value == "of a library"
    assert library.span_id == sent.span_id

    assert "noetl_outbox_published" in collector.metrics
    assert not any(name.endswith("_total") for name in collector.metrics if "noetl" in name)
