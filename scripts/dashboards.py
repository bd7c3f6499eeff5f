"""Writes the Grafana dashboards of `deploy/observability` from `scripts/dashboards.yaml`."""

import json
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "scripts/dashboards.yaml"
FOLDER = ROOT / "deploy/observability/dashboards"
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
# The datasource is chosen at the top of each dashboard.
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def build_dashboards() -> dict[str, str]:
    """Return the text of each dashboard by its file's name."""
    source = yaml.safe_load(SOURCE.read_text("utf-8"))
    return {
        f"{name}.json": json.dumps(_build_dashboard(name, board), indent=2) + "\n"
        for name, board in source.items()
    }


def _build_dashboard(name: str, board: dict[str, Any]) -> dict[str, Any]:
    return {
        "uid": f"noetl-{name}",
        "title": board["title"],
        "tags": ["noetl"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "annotations": {"list": []},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                }
            ]
        },
        "panels": [_build_panel(place, *panel) for place, panel in enumerate(board["panels"])],
    }


def _build_panel(place: int, title: str, unit: str, queries: dict[str, str]) -> dict[str, Any]:
    row, column = divmod(place, _COLUMNS)
    return {
        "id": place + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _DATASOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {
            "defaults": {"unit": "reqps" if unit == "/s" else unit, "min": 0},
            "overrides": [],
        },
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _DATASOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for number, (legend, expression) in enumerate(queries.items())
        ],
    }


def main() -> None:
    """Write every dashboard."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in build_dashboards().items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
