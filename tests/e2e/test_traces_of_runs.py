"""One trace through a whole stack: from a client's request over the queues to a step's request."""

from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.support import otlp, tool_site
from tests.support.asking import http
from tests.support.servers import wait_until
from tests.support.stack import running_stack

pytestmark = pytest.mark.timeout(240)

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
FRONT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: traced, path: e2e/traced}
"""
PLAYBOOK = """\
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


def test_a_clients_trace_goes_through_every_process(tmp_path: Path) -> None:
    services = ("PLANNER", "WORKER", "PROJECTOR")
    with otlp.collecting() as collector, tool_site.serving() as site:
        place = f"127.0.0.1:{site.server_address[1]}"
        settings = [f"{service}_OTLP_ENDPOINT={collector.url}" for service in services]
        settings.append(f"WORKER_HTTP_ALLOW={place}")
        options = ["--workers", "1", "--no-s3"]
        options += [word for setting in settings for word in ("--set", setting)]
        with running_stack(tmp_path / "home", *options) as stack:
            answer = http.post(
                f"{stack.url('api')}/api/execute",
                json={"content": FRONT + PLAYBOOK, "workload": {"url": f"http://{place}"}},
                headers={"traceparent": PARENT, "Prefer": "wait=60"},
                timeout=90,
            )
            assert answer.json()["status"] == "COMPLETED", answer.text
            heard = {
                step: http.get(
                    f"{stack.url('api')}/api/result/{answer.json()['execution_id']}/{step}",
                    timeout=30,
                ).text
                for step in ("start", "own")
            }
            wait_until(
                lambda: len(collector.named("GET")) == 2 and collector.named("projector apply"),
                timeout_s=60,
                what="every span has come",
            )
    assert f'"traceparent":"00-{TRACE}-' in heard["start"].replace(" ", "")
    assert '"traceparent":"mine"' in heard["own"].replace(" ", "")
    check_spans(collector)


def check_spans(collector: otlp.Collector) -> None:
    spans = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    kinds = {span.name: span.kind for span in spans}
    assert kinds["POST /api/execute"] == Span.SPAN_KIND_SERVER
    assert kinds["send noetl.commands"] == Span.SPAN_KIND_PRODUCER
    assert kinds["worker command"] == Span.SPAN_KIND_CONSUMER
    assert kinds["GET"] == Span.SPAN_KIND_CLIENT
    by_id = {span.span_id: span for span in spans}
    for command in (span for span in spans if span.name == "worker command"):
        assert by_id[command.parent_span_id].name == "planner decide"
        assert [by_id[link.span_id].kind for link in command.links] == [Span.SPAN_KIND_PRODUCER]
