"""The section of other engines: their figures, and ours of the same run over theirs."""

from typing import Any

from msgspec import Struct
from tests.bench.page_workloads import told


class Row(Struct, frozen=True):
    """One figure: where it is in ours and in theirs, and whether less of it is better."""

    title: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    is_less_better: bool = False


ROWS = (
    Row("W1 p50, ms", ("w1", "p50_ms"), ("w1", "p50_ms"), is_less_better=True),
    Row("W1 p95, ms", ("w1", "p95_ms"), ("w1", "p95_ms"), is_less_better=True),
    Row("W2, steps/s", ("w2", "per_s"), ("w2", "per_s")),
    Row("W3 of 1,000, items/s", ("w3", "by_items", "1000", "per_s"), ("w3", "per_s")),
    Row(
        "W3 through its queue, items/s", ("w3", "by_items", "1000", "per_s"), ("w3_queued", "per_s")
    ),
    Row("W4 per item, requests/s", ("w4", "items", "per_s"), ("w4_items", "per_s")),
    Row("W4 batched, requests/s", ("w4", "frames", "per_s"), ("w4_batched", "per_s")),
    Row("W5, s", ("w5",), ("w5",), is_less_better=True),
)


def found_at(report: Any, place: tuple[str, ...]) -> Any:
    """Follow keys; None where one is missing."""
    for key in place:
        if not isinstance(report, dict) or key not in report:
            return None
        report = report[key]
    return report


def times_better(row: Row, report: dict[str, Any], peer: dict[str, Any]) -> float | None:
    """Say how many times as good ours is as a peer's of the same run, or None."""
    ours, theirs = (_middle(found_at(report, row.ours)), _middle(found_at(peer, row.theirs)))
    if not ours or not theirs:
        return None
    return theirs / ours if row.is_less_better else ours / theirs


def _middle(found: Any) -> float | None:
    if not isinstance(found, dict):
        return None
    middle: float | None = found.get("median", found.get("seconds"))
    return middle


def peers(report: dict[str, Any]) -> list[str]:
    """Write the section, if other engines were run."""
    if "peers" not in report:
        return []
    # Of a run in which not all was measured, what another run has told stands beside nobody.
    report = {
        **report.get("beside_peers", report),
        "peers": report["peers"],
        "in_turn": report.get("in_turn", {}),
    }
    names = list(report["peers"])
    rows = [_line(row, report, names) for row in ROWS if _is_told(row, report)]
    notes = [
        f"* {name}: {item.get('about') or item['reason']}" for name, item in report["peers"].items()
    ]
    titles = [f"{name} {item.get('version', '')}".strip() for name, item in report["peers"].items()]
    return [
        "\n".join(
            [
                "## Other engines in the same run",
                "",
                "Each on the same PostgreSQL unless its note says otherwise, set up as its own documentation recommends. Behind",
                "its figure: how many times as good ours is. Batched: one durable unit of work makes fifty requests. A queue knows no graph,",
                "no history and no replay. Ours are of the same run as theirs: the machine is not as fast in every run.",
                "",
                f"| | ours | {' | '.join(titles)} |",
                f"|---|---:|{'---:|' * len(names)}",
                *rows,
                "",
                *notes,
                "",
                *_in_turn(report.get("in_turn", {})),
            ]
        )
    ]


def _in_turn(found: dict[str, Any]) -> list[str]:
    rows = [
        f"| {name} | {told(item['ours_ms'])} | {told(item['theirs_ms'])} | {told(item['times'])} |"
        for name, item in found.items()
        if "times" in item
    ]
    if not rows:
        return []
    return [
        "W1 in turn, both standing all the time: p50 of fifty executions of each, several times, and how many times as",
        "long ours takes in the same turn.",
        "",
        "| beside | ours, ms | theirs, ms | times |",
        "|---|---:|---:|---:|",
        *rows,
        "",
    ]


def _is_told(row: Row, report: dict[str, Any]) -> bool:
    return any(row.theirs[0] in peer for peer in report["peers"].values())


def _line(row: Row, report: dict[str, Any], names: list[str]) -> str:
    cells = [_told(found_at(report, row.ours))]
    for name in names:
        peer = report["peers"][name]
        failed = found_at(peer, (row.theirs[0], "reason"))
        cell = failed or _told(found_at(peer, row.theirs))
        times = times_better(row, report, peer)
        cells.append(cell if times is None else f"{cell}; **{times:.2f}**")
    return f"| {row.title} | {' | '.join(cells)} |"


def _told(found: Any) -> str:
    if not isinstance(found, dict):
        return "-"
    if "seconds" in found:
        return f"{found['seconds']}, {found['lost']} lost, {found['run_again']} run again"
    return told(found)
