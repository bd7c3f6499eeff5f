"""Alerts tell apart only what their metrics have labels for."""

import re
from pathlib import Path

import yaml

from noetl_chassis.observability import names

ALERTS = Path(__file__).parents[2] / "deploy/observability/alerts.yaml"
# What Prometheus adds to all that it scrapes.
SCRAPED = {"job", "instance"}
LABELS_BY_METRIC = {metric.name: set(metric.labels) for metric in names.METRICS}


def test_alerts_group_and_choose_by_labels_that_there_are() -> None:
    rules = [
        rule
        for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
        for rule in group["rules"]
    ]
    grouped = 0
    for rule in rules:
        expression = rule["expr"]
        metrics = re.findall(r"noetl_[a-z0-9_]+", expression)
        known = SCRAPED | {"le"}
        for metric in metrics:
            bare = re.sub(r"_(bucket|sum|count)$", "", metric)
            known |= LABELS_BY_METRIC.get(metric, LABELS_BY_METRIC.get(bare, set()))
        named = [
            label.strip()
            for labels in re.findall(r"(?:by|without) \(([^)]*)\)", expression)
            for label in labels.split(",")
        ]
        named += re.findall(r"([a-z_]+)\s*(?:=|!=|=~|!~)\s*\"", expression)
        grouped += len(named)
        assert set(named) <= known, f"{rule['alert']}: {set(named) - known}"
    assert grouped, "some alert names a label"
