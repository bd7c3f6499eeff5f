"""What the services of a stack show to Prometheus."""

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.support.asking import http
from tests.support.stack import Stack

SERVICES = ("planner", "worker", "outbox", "projector", "reaper")


def get_metrics_url(stack: Stack, process: str) -> str:
    """Return the address that Prometheus scrapes of a process, such as `planner-1`."""
    ready_url = str(stack.state["processes"][process]["health_url"])
    return f"{ready_url.rpartition('/')[0]}/metrics"


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
