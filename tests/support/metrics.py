"""What the services of a stack show to Prometheus."""

import re
import secrets
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.support.asking import http
from tests.support.stack import Stack

TELEMETRY_PAGE = Path(__file__).parents[2] / "docs/operations/telemetry.md"
SERVICES = ("planner", "worker", "outbox", "projector", "reaper")


def get_metrics_url(stack: Stack, process: str) -> str:
    """Return the address that Prometheus scrapes of a process, such as `planner-1`."""
    return f"{stack.state['processes'][process]['health_url']}/metrics"


def scrape_process(stack: Stack, process: str) -> list[Metric]:
    """Return every metric that a process shows."""
    text = http.get(get_metrics_url(stack, process), timeout=30).raise_for_status().text
    return list(text_string_to_metric_families(text))


def count_samples(stack: Stack, process: str, name: str, **labels: str) -> float:
    """Add up the samples of a name with these labels; 0 where there are none."""
    return sum(
        sample.value
        for metric in scrape_process(stack, process)
        for sample in metric.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def read_metrics_table() -> dict[str, set[str]]:
    """Return the metrics of the table in `docs/operations/telemetry.md` with their services."""
    table = TELEMETRY_PAGE.read_text("utf-8").partition("| name in the design |")[2]
    services_by_metric = {}
    for line in table.partition("\n\n")[0].splitlines()[2:]:
        _, metrics, services = (cell.strip() for cell in line.strip("|").split("|"))
        named = set(SERVICES) if services == "all" else set(services.split(", "))
        for metric in re.findall(r"`([a-z_]+)`", metrics):
            services_by_metric[metric] = named
    return services_by_metric


# PFT keeps its rows in a database; these go from step to step through the payload store. Of so many
# results one at least is measured, as one in sixteen is.
ROWS_BETWEEN_STEPS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: rows_between_steps, path: tests/rows_between_steps}
workflow:
  - step: make
    tool:
      kind: python
      input: {salt: "{{ workload.salt }}"}
      code: "def main(salt):\\n    return [{'n': n, 'text': salt} for n in range(4000)]"
    next: each
  - step: each
    loop:
      in: "{{ make }}"
      iterator: row
      spec: {mode: chunked, chunk_size: 1000, max_in_flight: 2}
    tool: {kind: noop}
    next: items
  - step: items
    loop: {in: "{{ range(250) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 50}}
    tool: {kind: noop}
"""


def run_rows_between_steps(stack: Stack) -> None:
    """Run a playbook whose results workers write to the payload store and read from it.

    No worker has them in its memory from a run before.
    """
    answer = http.post(
        f"{stack.url('api')}/api/execute",
        json={"content": ROWS_BETWEEN_STEPS, "workload": {"salt": secrets.token_hex(16)}},
        headers={"Prefer": "wait=60"},
        timeout=120,
    ).json()
    assert answer["status"] == "COMPLETED", answer
