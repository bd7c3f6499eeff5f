"""Plots of the page: rates on an axis that begins at nothing, with what they are measured against."""

from collections.abc import Callable
from typing import Any

from tests.bench import growth
from tests.bench.drawing import LOOK, pygal

# File by file: the series that it needs, and what it shows.
FILES = {
    "benchmarks-cost.svg": ("w3", "CPU that one unit of work costs, by service"),
    "benchmarks-floor.svg": ("w4", "Requests a second beside the raw program"),
    "benchmarks-growth.svg": ("growth", "What grows with the ledger and with items"),
}


def draw(report: dict[str, Any]) -> dict[str, bytes]:
    """Draw what the report has figures for, by file name."""
    drawers: dict[str, Callable[[dict[str, Any]], Any]] = {
        "benchmarks-cost.svg": _cost,
        "benchmarks-floor.svg": _floor,
        "benchmarks-growth.svg": lambda found: growth.draw(found["growth"]),
    }
    return {
        name: drawers[name](report).render(is_unicode=False)
        for name, (series, _) in FILES.items()
        if series in report
    }


def _cost(report: dict[str, Any]) -> Any:
    """Stack the CPU of a unit: bars of equal work can be compared by their length."""
    units = {
        "W2: a step": _each(report.get("w2")),
        **{
            f"W3: an item of {int(items):,}": _each(item)
            for items, item in report["w3"]["by_items"].items()
        },
        **{
            f"W4: a request, {name}": _each(report["w4"][name])
            for name in ("items", "frames")
            if "w4" in report
        },
    }
    shown = {title: cpu for title, cpu in units.items() if cpu}
    chart = pygal.HorizontalStackedBar(
        title="CPU that one unit of work costs, by service", x_title="CPU microseconds", **LOOK
    )
    chart.x_labels = list(shown)
    parts = {part: None for cpu in shown.values() for part in cpu}
    for part in parts:
        chart.add(part, [cpu.get(part, 0.0) for cpu in shown.values()])
    return chart


def _each(one: dict[str, Any] | None) -> dict[str, float]:
    return dict(one["each"]["cpu_us"]) if one else {}


def _floor(report: dict[str, Any]) -> Any:
    """Draw the median of each way, and write its least and most beside it."""
    chart = pygal.HorizontalBar(
        title="W4: GETs of 1 KB JSON with a row saved for each, medians",
        x_title="requests/s",
        **LOOK,
    )
    chart.value_formatter = lambda value: f"{value:,.0f}"
    for title, name in (
        ("raw program", "floor"),
        ("durable per frame", "frames"),
        ("durable per item", "items"),
    ):
        rate = report["w4"][name]["per_s"]
        apart = f"{rate['least']:,.0f} to {rate['most']:,.0f}"
        chart.add(f"{title} ({apart})", [rate["median"]])
    return chart
