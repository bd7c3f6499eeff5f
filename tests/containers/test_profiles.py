"""The profiles of compose: Spark as a cluster, and who watches the services."""

import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from tests.support import containers
from tests.support.asking import http
from tests.support.composed import PROFILES, SERVICES
from tests.support.containers import ComposedStack
from tests.support.servers import wait_until

from noetl_cli.stack.processes import loopback

PATIENCE_S = 180.0
# Grafana's image is made nowhere here: what it is given is checked by tests/architecture.
# The worker of the profile `spark` stands in for the plain one.
RUNNING = [*(name for name in SERVICES if name != "worker"), "worker-spark"]
TRIED = [*RUNNING, *PROFILES["spark"], "prometheus", "collector"]
FRAMES = 12
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: spread, path: containers/spread}
workflow:
  - step: spread
    loop:
      in: "{{ range(FRAMES) | list }}"
      iterator: n
      spec:
        mode: chunked
        chunk_size: 1
        max_in_flight: FRAMES
        frame: {process: frame, engine: spark}
    tool:
      kind: python
      code: |
        import socket, time

        def main():
            time.sleep(0.5)
            return {"host": socket.gethostname()}
    next: {arcs: [{step: table}]}
  - step: table
    tool:
      kind: spark
      sql: "SELECT id, id * id AS square FROM range(100)"
      output: {inline_max_bytes: 0}
    next: {arcs: [{step: end}]}
  - step: end
    tool:
      kind: spark
      inputs: {squares: "{{ table }}"}
      sql: "SELECT sum(square) AS total FROM squares"
""".replace("FRAMES", str(FRAMES))
TOTAL = sum(number * number for number in range(100))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposedStack]:
    images = (
        "noetl-worker-spark",
        "prom/prometheus:v2.53.3",
        "otel/opentelemetry-collector-contrib:0.165.0",
    )
    if obstacle := containers.find_obstacle(images=images):
        pytest.skip(f'{obstacle}, with IMAGES="worker-spark" and BASES="prometheus collector"')
    folder = tmp_path_factory.mktemp("profiles")
    (folder / "spread.yaml").write_text(PLAYBOOK)
    ports = loopback.choose_ports(["api", "prometheus"], before={})
    composed = ComposedStack(
        folder,
        name=f"noetl-profiles-{os.getpid()}",
        port=ports["api"],
        environ={
            "COMPOSE_PROFILES": ",".join(PROFILES),
            "NOETL_PROMETHEUS_PORT": str(ports["prometheus"]),
            "NOETL_OTLP_ENDPOINT": "http://collector:4318",
            "NOETL_SPARK_CODE_ALLOWED": "true",
            # No query runs without short-lived keys, which compose's store gives.
            "NOETL_SPARK_KEYS": "scoped",
            "NOETL_SPARK_CORES": "1",
            "NOETL_SPARK_MEMORY": "1g",
        },
    )
    try:
        composed.start(*TRIED)
        yield composed
    finally:
        composed.compose("down", "--volumes", "--timeout", "20")


def ask_prometheus(stack: ComposedStack, path: str) -> Any:
    port = stack.environ["NOETL_PROMETHEUS_PORT"]
    answer = http.get(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=20)
    return answer.raise_for_status().json()["data"]


def query_values(stack: ComposedStack, expression: str) -> dict[str, float]:
    """Return the latest value of an expression for each job."""
    found = ask_prometheus(stack, f"query?query={quote(expression)}")["result"]
    return {item["metric"].get("job", ""): float(item["value"][1]) for item in found}


def test_compose_renders_both_profiles_and_none_of_them_unasked(stack: ComposedStack) -> None:
    whole = msgspec.json.decode(stack.compose("config", "--format", "json"))["services"]
    plain = stack.compose("config", "--services", COMPOSE_PROFILES="").split()
    of_profiles = {name for names in PROFILES.values() for name in names}
    assert of_profiles <= set(whole)
    assert not of_profiles & set(plain)
    assert whole["spark-worker"]["scale"] == 2
    for name in of_profiles:
        assert {port["host_ip"] for port in whole[name].get("ports", [])} <= {"127.0.0.1"}


def test_frames_and_queries_run_on_the_workers_of_the_cluster(stack: ComposedStack) -> None:
    printed = stack.noetl("run", str(stack.folder / "spread.yaml"), "--json")
    execution = str(msgspec.json.decode(printed.splitlines()[-1])["execution_id"])
    assert re.search(rf'"total":\s*{TOTAL}\b', read_result(stack, execution, "end"))
    hosts = {
        containers.inspect_container(name)["Config"]["Hostname"]
        for name in stack.containers("spark-worker")
    }
    assert len(hosts) == 2
    shown = read_result(stack, execution, "spread")
    assert [host for host in hosts if host in shown]
    drivers = [
        containers.inspect_container(name)["Config"]["Hostname"]
        for name in stack.containers("worker-spark")
    ]
    assert not [host for host in drivers if host in shown]


def read_result(stack: ComposedStack, execution: str, step: str) -> str:
    return stack.noetl("result", execution, step, "--output", "json")


def test_prometheus_scrapes_every_service_and_has_every_alert(stack: ComposedStack) -> None:
    jobs = set(RUNNING)
    wait_until(
        lambda: {job for job, value in query_values(stack, "up").items() if value} == jobs,
        timeout_s=PATIENCE_S,
        what="every service is scraped",
    )
    stack.noetl("run", str(stack.folder / "spread.yaml"), "--json")
    wait_until(
        lambda: query_values(stack, "noetl_events_appended_total").get("planner", 0) > 0,
        timeout_s=PATIENCE_S,
        what="the events of a run are counted",
    )
    rules = ask_prometheus(stack, "rules")["groups"]
    alerts = {rule["name"]: rule for group in rules for rule in group["rules"]}
    assert "OutboxStalled" in alerts
    assert {rule["health"] for rule in alerts.values()} <= {"ok", "unknown"}


def test_the_collector_takes_what_every_service_sends(stack: ComposedStack) -> None:
    def list_senders() -> set[str]:
        kept = stack.compose("exec", "-T", "collector", "cat", "/data/metrics.json")
        return {name for name in SERVICES if f'"noetl-{name}"' in kept}

    wait_until(
        lambda: list_senders() == set(SERVICES),
        timeout_s=PATIENCE_S,
        what="the metrics of every service have come",
    )
