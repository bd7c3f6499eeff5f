"""A collector: takes OTLP over HTTP, decodes it, and keeps spans, log records and metric names."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(ThreadingHTTPServer):
    """What came so far; every list only grows."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.spans: list[Span] = []
        self.service_by_span: dict[bytes, str] = {}
        self.lines: list[Any] = []
        self.metrics: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def named(self, name: str) -> list[Span]:
        """The spans of a name."""
        return [span for span in self.spans if span.name == name]

    def take(self, path: str, body: bytes) -> None:
        match path:
            case "/v1/traces":
                for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                    service = str(attributes(group.resource)["service.name"])
                    spans = [span for scope in group.scope_spans for span in scope.spans]
                    self.service_by_span |= {
                        span.span_id: service.removeprefix("noetl-") for span in spans
                    }
                    self.spans += spans
            case "/v1/logs":
                for lines in ExportLogsServiceRequest.FromString(body).resource_logs:
                    self.lines += [
                        log_record for scope in lines.scope_logs for log_record in scope.log_records
                    ]
            case "/v1/metrics":
                for metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    self.metrics |= {
                        metric.name for scope in metrics.scope_metrics for metric in scope.metrics
                    }
            case _:
                raise AssertionError(f"no collector has {path}")


class _Answers(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.take(self.path, body)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_args: Any) -> None:
        """Say nothing."""


@contextmanager
def collecting() -> Iterator[Collector]:
    """A running collector."""
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def attributes(said: Any) -> dict[str, Any]:
    """The attributes of a span or a log record, as plain values."""
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
        for attribute in said.attributes
    }
