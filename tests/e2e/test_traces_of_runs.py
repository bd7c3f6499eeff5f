"""One trace through a whole stack: from a client's request over the queues to the last fact."""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.support import metrics, otlp, tool_site
from tests.support.asking import http
from tests.support.servers import wait_until
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(300)

FRONT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: traced, path: e2e/traced}
"""
TWO_REQUESTS = """\
workflow:
  - step: start
    tool: {kind: http, url: "{{ workload.url }}/echo"}
    next: own
  - step: own
    tool:
      kind: http
      url: "{{ workload.url }}/echo"
      headers: {Traceparent: mine}
"""
SLOW_STEP = """\
workflow:
  - step: start
    tool: {kind: http, url: "{{ workload.url }}/hang/4"}
"""


class Traced(Struct, frozen=True):
    """A stack of which every service sends its spans to a collector."""

    stack: Stack
    collector: otlp.Collector
    site_url: str

    def ask_for_run(self, workflow: str, trace_id: str, *, prefer: str) -> Any:
        """Start a playbook within a trace."""
        return http.post(
            f"{self.stack.url('api')}/api/execute",
            json={"content": FRONT + workflow, "workload": {"url": self.site_url}},
            headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01", "Prefer": prefer},
            timeout=90,
        ).json()

    def read_result(self, execution_id: str, step: str) -> str:
        """Read what a step answered, without spaces."""
        url = f"{self.stack.url('api')}/api/result/{execution_id}/{step}"
        return http.get(url, timeout=30).text.replace(" ", "")

    def list_spans(self, trace_id: str, name: str, *, service: str) -> list[Span]:
        """Return the spans of a service in a trace by their name."""
        return [
            span
            for span in self.collector.named(name)
            if span.trace_id.hex() == trace_id
            and self.collector.service_by_span[span.span_id] == service
        ]

    def find_linked(self, trace_id: str, *, service: str) -> list[Span]:
        """Return the spans of a service that are linked to a trace."""
        return [
            span
            for span in list(self.collector.spans)
            if self.collector.service_by_span[span.span_id] == service
            and any(link.trace_id.hex() == trace_id for link in span.links)
        ]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traced")
    with otlp.collecting() as collector, tool_site.serving() as site:
        place = f"127.0.0.1:{site.server_address[1]}"
        settings = [
            f"{service.upper()}_OTLP_ENDPOINT={collector.url}" for service in metrics.SERVICES
        ]
        settings.append(f"WORKER_HTTP_ALLOW={place}")
        options = ["--workers", "1", "--no-s3"]
        options += [word for setting in settings for word in ("--set", setting)]
        with running_stack(folder / "home", *options) as stack:
            yield Traced(stack=stack, collector=collector, site_url=f"http://{place}")


def test_a_clients_trace_goes_through_every_process(traced: Traced) -> None:
    trace_id = secrets.token_hex(16)
    answer = traced.ask_for_run(TWO_REQUESTS, trace_id, prefer="wait=60")
    assert answer["status"] == "COMPLETED", answer
    execution_id = answer["execution_id"]
    heard = {step: traced.read_result(execution_id, step) for step in ("start", "own")}
    assert f'"traceparent":"00-{trace_id}-' in heard["start"]
    assert '"traceparent":"mine"' in heard["own"]
    wait_until(lambda: is_trace_whole(traced, trace_id), timeout_s=90, what="every span has come")
    spans = [span for span in traced.collector.spans if span.trace_id.hex() == trace_id]
    kinds = {span.name: span.kind for span in spans}
    assert kinds["POST /api/execute"] == Span.SPAN_KIND_SERVER
    assert kinds["send noetl.commands"] == Span.SPAN_KIND_PRODUCER
    assert kinds["worker command"] == Span.SPAN_KIND_CONSUMER
    assert kinds["GET"] == Span.SPAN_KIND_CLIENT
    by_id = {span.span_id: span for span in spans}
    for command in (span for span in spans if span.name == "worker command"):
        assert by_id[command.parent_span_id].name == "planner decide"
        assert [by_id[link.span_id].kind for link in command.links] == [Span.SPAN_KIND_PRODUCER]


def is_trace_whole(traced: Traced, trace_id: str) -> bool:
    """Tell whether the run's ends have come and nothing refers to a span that has not.

    Each process sends its spans in its own time.
    """
    spans = [span for span in list(traced.collector.spans) if span.trace_id.hex() == trace_id]
    ids = {span.span_id for span in spans}
    references = {span.parent_span_id for span in spans if span.name != "POST /api/execute"}
    references |= {link.span_id for span in spans for link in span.links}
    names = [span.name for span in spans]
    return (
        names.count("GET") == 2
        and {"POST /api/execute", "send noetl.commands"} <= set(names)
        and references <= ids
        and bool(traced.find_linked(trace_id, service="projector"))
    )


def test_a_killed_worker_leaves_the_trace_in_one(traced: Traced) -> None:
    """The reaper's report goes to the planner over the outbox, all in the trace of the request."""
    trace_id = secrets.token_hex(16)
    asked = traced.ask_for_run(SLOW_STEP, trace_id, prefer="respond-async")
    url = f"{traced.stack.url('api')}/api/executions/{asked['execution_id']}"
    wait_until(
        lambda: "command.started" in http.get(f"{url}/events", timeout=60).text,
        timeout_s=60,
        what="the worker has begun",
    )
    traced.stack.kill("worker-1", wait=False)
    wait_until(
        lambda: http.get(url, timeout=60).json()["status"] == "COMPLETED",
        timeout_s=120,
        what="another worker has done it",
    )
    wait_until(
        lambda: (
            bool(traced.find_linked(trace_id, service="projector"))
            and bool(list_spans_of_loss(traced, trace_id))
        ),
        timeout_s=90,
        what="every span has come",
    )
    decision, report, sent, reissue, again = list_spans_of_loss(traced, trace_id)
    assert decision.name == "planner decide"
    assert (sent.parent_span_id, sent.kind) == (report.span_id, Span.SPAN_KIND_PRODUCER)
    assert sent.span_id in {link.span_id for link in reissue.links}
    assert again.parent_span_id == reissue.span_id
    lost = metrics.count_samples(traced.stack, "planner-1", "noetl_work_lost_total", kind="command")
    assert lost >= 1, "the alert on expired leases counts what the reaper found"


def list_spans_of_loss(traced: Traced, trace_id: str) -> list[Span]:
    """Return the first decision, the report, its sending, the second decision and the command.

    Nothing while any of them has not come.
    """
    decisions = traced.list_spans(trace_id, "planner decide", service="planner")
    reports = traced.list_spans(trace_id, "reaper report", service="reaper")
    chain = [
        [
            span
            for span in decisions
            if span.span_id in {report.parent_span_id for report in reports}
        ],
        reports,
        traced.list_spans(trace_id, "send noetl.ingest", service="outbox"),
        [span for span in decisions if span.parent_span_id in {item.span_id for item in reports}],
        traced.list_spans(trace_id, "worker command", service="worker"),
    ]
    return [spans[0] for spans in chain] if all(chain) else []
