"""One trace of a run, and the logs of all services, in a real collector of OpenTelemetry."""

import json
import secrets
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import metrics
from tests.support.asking import http
from tests.support.servers import wait_until
from tests.support.services import free_port
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(600)

PARENT = "b7ad6b7169203331"
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: traced, path: observability/traced}
workflow:
  - step: start
    tool: {kind: python, code: "def main():\\n    CODE"}
    next: end
  - step: end
    tool: {kind: python, code: "def main():\\n    return 1"}
"""


@pytest.fixture(scope="module")
def collector(
    otelcol: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """Run the collector; gives its address, and the folder that it writes to."""
    tmp_path = tmp_path_factory.mktemp("collector")
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
    # The last line may not be whole yet.
    for line in path.read_text("utf-8").rpartition("\n")[0].splitlines():
        for resource in json.loads(line)[group]:
            names = {
                attribute["key"]: attribute["value"].get("stringValue")
                for attribute in resource["resource"]["attributes"]
            }
            service = str(names["service.name"]).removeprefix("noetl-")
            for part in resource[scope]:
                records += [(service, record) for record in part[kind]]
    return records


def is_sent_by_all(path: Path, group: str, scope: str, kind: str) -> bool:
    senders = {service for service, _ in read_records(path, group, scope, kind)}
    return senders == set(metrics.SERVICES)


def read_spans(folder: Path) -> list[tuple[str, Any]]:
    return read_records(folder / "traces.json", "resourceSpans", "scopeSpans", "spans")


@pytest.fixture(scope="module")
def stack(collector: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack of which every service sends everything to the collector."""
    options = ["--workers", "1", "--no-s3"]
    for service in metrics.SERVICES:
        options += ["--set", f"{service.upper()}_OTLP_ENDPOINT={collector[0]}"]
    with running_stack(tmp_path_factory.mktemp("traced") / "home", *options) as running:
        yield running


def find_joined_services(folder: Path, trace: str) -> set[str]:
    """Return the services with a span of the trace, or with one that is linked to the trace."""
    return {
        service
        for service, span in read_spans(folder)
        if span["traceId"] == trace
        or any(link["traceId"] == trace for link in span.get("links", ()))
    }


def ask_for_run(stack: Stack, code: str, trace: str, *, prefer: str) -> Any:
    """Start two steps, the first with this code, within a trace."""
    return http.post(
        f"{stack.url('api')}/api/execute",
        json={"content": PLAYBOOK.replace("CODE", code)},
        headers={"traceparent": f"00-{trace}-{PARENT}-01", "Prefer": prefer},
        timeout=90,
    ).json()


def test_one_trace_has_the_request_and_the_last_fact(
    collector: tuple[str, Path], stack: Stack
) -> None:
    _, folder = collector
    trace = secrets.token_hex(16)
    answer = ask_for_run(stack, "return {'rows': [1, 2]}", trace, prefer="wait=60")
    assert answer["status"] == "COMPLETED", answer
    wait_until(
        lambda: find_joined_services(folder, trace) >= {"planner", "worker", "projector"},
        timeout_s=90,
        what="the spans of the run have come",
    )
    spans = [span for _, span in read_spans(folder) if span["traceId"] == trace]
    ids = {span["spanId"] for span in spans}
    (root,) = [span for span in spans if span["name"] == "POST /api/execute"]
    assert root["parentSpanId"] == PARENT
    for span in spans:
        assert span is root or span["parentSpanId"] in ids, span["name"]
    counts = {
        name: sum(span["name"] == name for span in spans)
        for name in ("worker command", "planner decide")
    }
    assert counts["worker command"] == 2
    assert counts["planner decide"] >= 2
    for file, group, scope, kind in (
        ("logs.json", "resourceLogs", "scopeLogs", "logRecords"),
        ("metrics.json", "resourceMetrics", "scopeMetrics", "metrics"),
    ):
        wait_until(
            partial(is_sent_by_all, folder / file, group, scope, kind),
            timeout_s=150,
            what=f"every service has sent its {kind}",
        )


def test_the_trace_of_a_killed_worker_has_every_service(
    collector: tuple[str, Path], stack: Stack
) -> None:
    _, folder = collector
    trace = secrets.token_hex(16)
    code = "import time; time.sleep(4)"
    execution_id = ask_for_run(stack, code, trace, prefer="respond-async")["execution_id"]
    url = f"{stack.url('api')}/api/executions/{execution_id}"
    wait_until(
        lambda: "command.started" in http.get(f"{url}/events", timeout=10).text,
        timeout_s=60,
        what="the worker has begun",
    )
    stack.kill("worker-1", wait=False)
    wait_until(
        lambda: http.get(url, timeout=10).json()["status"] == "COMPLETED",
        timeout_s=120,
        what="another worker has done it",
    )
    wait_until(
        lambda: find_joined_services(folder, trace) == set(metrics.SERVICES),
        timeout_s=90,
        what="the spans of every service have come",
    )
    services = {service for service, span in read_spans(folder) if span["traceId"] == trace}
    # A projector reads many traces at once: it links to them.
    assert services == set(metrics.SERVICES) - {"projector"}
