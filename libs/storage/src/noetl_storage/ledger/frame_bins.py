"""Frames of an execution by bins: as many as a page can show, however many frames there are."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from math import ceil
from typing import Any

from noetl_contracts.ledger.records import FrameBin
from noetl_contracts.status import FrameStatus

Row = dict[str, Any]


def bin_frames(rows: Iterable[Row], *, bins_max: int) -> list[FrameBin]:
    """Share out the frames of each stage, in the order of their ids, over at most so many bins."""
    rows_by_stage: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (int(row["stage_id"]), int(row["frame_id"]))):
        rows_by_stage.setdefault(row["stage_id"], []).append(row)
    return [
        _sum_bin(stage_id, place, part)
        for stage_id, of_stage in rows_by_stage.items()
        for place, part in enumerate(_split_evenly(of_stage, bins_max), start=1)
    ]


def _split_evenly(rows: list[Row], parts_max: int) -> Iterable[list[Row]]:
    """Split as `ntile` of SQL does: the first parts have one more."""
    parts = min(parts_max, len(rows))
    size, longer = divmod(len(rows), parts)
    begin = 0
    for place in range(parts):
        end = begin + size + (place < longer)
        yield rows[begin:end]
        begin = end


def _sum_bin(stage_id: str, place: int, rows: list[Row]) -> FrameBin:
    durations = sorted(
        _measure_duration(row["created_at"], row["completed_at"])
        for row in rows
        if row["created_at"] is not None and row["completed_at"] is not None
    )
    statuses = [row["status"] for row in rows]
    completed_count = statuses.count(str(FrameStatus.COMPLETED))
    failed_count = sum(status in _FAILED for status in statuses)
    cancelled_count = statuses.count(str(FrameStatus.CANCELLED))
    return FrameBin(
        stage_id=stage_id,
        place=place,
        frames=len(rows),
        done=completed_count,
        failed=failed_count,
        cancelled=cancelled_count,
        running=len(rows) - completed_count - failed_count - cancelled_count,
        rows=sum(row["row_count"] or 0 for row in rows),
        p50_s=_find_percentile(durations, 0.5),
        p95_s=_find_percentile(durations, 0.95),
        first=rows[0]["frame_id"],
        last=rows[-1]["frame_id"],
    )


def _measure_duration(started_at: datetime, ended_at: datetime) -> float:
    return max(0.0, (ended_at - started_at).total_seconds())


def _find_percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the first value with at least this share at or below it (`percentile_disc`)."""
    return ordered[ceil(share * len(ordered)) - 1] if ordered else None


_FAILED = frozenset({str(FrameStatus.FAILED), str(FrameStatus.ABANDONED)})
