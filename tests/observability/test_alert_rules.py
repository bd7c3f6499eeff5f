"""Prometheus' own tool reads every expression, and fires every alert."""

import json
import subprocess
from pathlib import Path

import yaml
from scripts import dashboards

FOLDER = Path(__file__).parents[2] / "deploy/observability"


def run_promtool(promtool: Path, *words: str | Path) -> str:
    done = subprocess.run(  # noqa: S603 (our own build of it)
        [promtool, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_alert_fires_on_what_it_names_and_is_silent_otherwise(promtool: Path) -> None:
    run_promtool(promtool, "check", "rules", FOLDER / "alerts.yaml")
    run_promtool(promtool, "test", "rules", FOLDER / "alerts.test.yaml")


def test_each_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))["groups"]
    cases = yaml.safe_load((FOLDER / "alerts.test.yaml").read_text("utf-8"))["tests"]
    tried = {
        (case["alertname"], bool(case.get("exp_alerts")))
        for test in cases
        for case in test["alert_rule_test"]
    }
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    assert tried == {(alert, is_firing) for alert in alerts for is_firing in (True, False)}


def test_prometheus_reads_every_query_of_the_dashboards(promtool: Path, tmp_path: Path) -> None:
    expressions = [
        target["expr"].replace("$__rate_interval", "5m")
        for text in dashboards.build_dashboards().values()
        for panel in json.loads(text)["panels"]
        for target in panel["targets"]
    ]
    rules = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(expressions)
    ]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), "utf-8")
    assert f"{len(expressions)} rules found" in run_promtool(promtool, "check", "rules", path)
