"""One trace of a run, and the logs of all services, in a real collector of OpenTelemetry."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.asking import http
from tests.support.servers import wait_until
from tests.support.services import free_port
from tests.support.stack import running_stack

pytestmark = pytest.mark.timeout(300)

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
SERVICES = ("planner", "worker", "outbox", "projector", "reaper")
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: traced, path: observability/traced}
workflow:
  - step: start
    tool: {kind: python, code: "def main():\\n    return {'rows': [1, 2]}"}
    next: end
  - step: end
    tool: {kind: python, code: "def main():\\n    return 1"}
"""


@pytest.fixture
def collector(otelcol: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Run the collector; gives its address, and the folder that it writes to."""
    port = free_port()
    endpoint = f"127.0.0.1:{port}"
    kinds = ("traces", "metrics", "logs")
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": endpoint}}}},
        "exporters": {
            f"file/{kind}": {"path": str(tmp_path / f"{kind}.json"), "flush_interval": "100ms"}
            for kind in kinds
        },
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {
                kind: {"receivers": ["otlp"], "exporters": [f"file/{kind}"]} for kind in kinds
            },
        },
    }
    path = tmp_path / "collector.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    with (tmp_path / "collector.log").open("wb") as written:
        process = subprocess.Popen(  # noqa: S603 (our own build of it)
            [otelcol, "--config", path], stderr=written, stdout=written
        )
        try:
            wait_until(
                lambda: "Everything is ready" in (tmp_path / "collector.log").read_text(),
                timeout_s=30,
                what="the collector listens",
            )
            yield f"http://{endpoint}", tmp_path
        finally:
            process.terminate()
            process.wait(timeout=30)


def read_records(path: Path, group: str, scope: str, kind: str) -> list[tuple[str, Any]]:
    """Return each record with the service that sent it."""
    records = []
    for line in path.read_text("utf-8").splitlines():
        for resource in json.loads(line)[group]:
            names = {
                attribute["key"]: attribute["value"].get("stringValue")
                for attribute in resource["resource"]["attributes"]
            }
            service = str(names["service.name"]).removeprefix("noetl-")
            for part in resource[scope]:
                records += [(service, record) for record in part[kind]]
    return records


def read_spans(folder: Path) -> list[tuple[str, Any]]:
    return read_records(folder / "traces.json", "resourceSpans", "scopeSpans", "spans")


def find_joined_services(folder: Path) -> set[str]:
    """Return the services with a span of the trace, or with one that is linked to the trace."""
    return {
        service
        for service, span in read_spans(folder)
        if span["traceId"] == TRACE
        or any(link["traceId"] == TRACE for link in span.get("links", ()))
    }


def test_one_trace_has_the_request_and_the_last_fact(
    collector: tuple[str, Path], tmp_path: Path
) -> None:
    url, folder = collector
    options = ["--workers", "1", "--no-s3"]
    for service in SERVICES:
        options += ["--set", f"{service.upper()}_OTLP_ENDPOINT={url}"]
    with running_stack(tmp_path / "home", *options) as stack:
        answer = http.post(
            f"{stack.url('api')}/api/execute",
            json={"content": PLAYBOOK},
            headers={"traceparent": PARENT, "Prefer": "wait=60"},
            timeout=90,
        ).json()
        assert answer["status"] == "COMPLETED", answer
        wait_until(
            lambda: find_joined_services(folder) >= {"planner", "worker", "projector"},
            timeout_s=90,
            what="the spans of the run have come",
        )
        wait_until(
            lambda: {service for service, _ in read_spans(folder)} >= {"reaper"},
            timeout_s=90,
            what="the reaper's span has come",
        )
    spans = [span for _, span in read_spans(folder) if span["traceId"] == TRACE]
    ids = {span["spanId"] for span in spans}
    (root,) = [span for span in spans if span["name"] == "POST /api/execute"]
    assert root["parentSpanId"] == PARENT.split("-")[2]
    for span in spans:
        assert span is root or span["parentSpanId"] in ids, span["name"]
    counts = {
        name: sum(span["name"] == name for span in spans)
        for name in ("worker command", "planner decide")
    }
    assert counts["worker command"] == 2
    assert counts["planner decide"] >= 2
    lines = read_records(folder / "logs.json", "resourceLogs", "scopeLogs", "logRecords")
    assert {service for service, _ in lines} == set(SERVICES)
    metrics = read_records(folder / "metrics.json", "resourceMetrics", "scopeMetrics", "metrics")
    assert {service for service, _ in metrics} == set(SERVICES)
