"""Dashboards are those of their source, and ask for what services measure."""

import re
from typing import Any

import pytest
import yaml
from scripts import dashboards
from tests.support import metrics

from noetl_chassis.observability import names
from noetl_chassis.observability.names import MetricKind

METRIC = re.compile(r"noetl_[a-z0-9_]+")
SELECTOR = re.compile(r"(noetl_[a-z0-9_]+)\{([^}]*)\}")
GROUPED = re.compile(r"by \(([^)]*)\) \((?:rate|increase)?\(?(noetl_[a-z0-9_]+)")
SCRAPED = {"job", "instance", "le"}
BY_NAME = {metric.name: metric for metric in names.METRICS}
# What the design asks to see, by the names that Prometheus' rules allow.
ASKED_FOR = {
    "noetl_frame_backlog",
    "noetl_projector_lag_seconds",
    "noetl_checkpoint_age_seconds",
    "noetl_event_result_bytes",
    "noetl_reference_resolve_seconds",
    "noetl_http_request_duration_seconds",
    "noetl_frame_duration_seconds",
    "noetl_work_lost_total",
    "noetl_events_retired_total",
    "noetl_payload_bytes_total",
    "noetl_storage_reads_total",
    "noetl_storage_admissions_total",
    "noetl_shards_owned",
    "noetl_projector_unowned_total",
    "noetl_projector_unshardable_total",
    "noetl_projector_stale_writes_total",
    "noetl_frame_backlog_detail",
    "noetl_postgres_connections_peak",
    "noetl_postgres_waiters_peak",
    "noetl_place_info",
}


def list_expressions() -> list[str]:
    boards: dict[str, Any] = yaml.safe_load(dashboards.SOURCE.read_text("utf-8"))
    return [
        expression
        for board in boards.values()
        for _title, _unit, queries in board["panels"]
        for expression in queries.values()
    ]


def find_metric(name: str) -> names.Metric | None:
    """Return the metric of a name in a query; only histograms have parts."""
    part = re.sub(r"_(bucket|sum|count)$", "", name)
    metric = BY_NAME.get(name) or BY_NAME.get(part)
    is_part = metric is not None and metric.name != name
    return None if metric is None or is_part != (metric.kind is MetricKind.HISTOGRAM) else metric


def test_the_dashboards_are_those_of_their_source() -> None:
    stored = {path.name: path.read_text("utf-8") for path in dashboards.FOLDER.glob("*.json")}
    assert stored == dashboards.build_dashboards(), "run python -m scripts.dashboards"
    assert len(stored) == 6


@pytest.mark.parametrize("expression", list_expressions())
def test_a_panel_asks_for_metrics_and_labels_that_there_are(expression: str) -> None:
    asked = METRIC.findall(expression)
    assert asked
    for name in asked:
        assert find_metric(name) is not None, f"no service measures {name}"
    pairs = [
        (name, re.findall(r"([a-z_]+)=", labels)) for name, labels in SELECTOR.findall(expression)
    ]
    pairs += [(name, labels.split(", ")) for labels, name in GROUPED.findall(expression)]
    for name, labels in pairs:
        metric = find_metric(name)
        assert metric is not None
        assert set(labels) <= SCRAPED | set(metric.labels), f"{name}: {labels}"


def test_what_the_design_asks_for_is_on_a_dashboard() -> None:
    shown = {
        metric.name
        for text in list_expressions()
        for name in METRIC.findall(text)
        if (metric := find_metric(name))
    }
    assert shown >= ASKED_FOR


def test_the_table_of_the_docs_names_metrics_and_services_that_there_are() -> None:
    table = metrics.read_metrics_table()
    assert len(table) > 20
    assert set(table) <= set(BY_NAME)
    for services in table.values():
        assert services <= set(metrics.SERVICES)
