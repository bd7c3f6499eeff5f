"""Frames of an execution by bins: as many as a page can show, however many frames there are."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from math import ceil
from typing import Any, NamedTuple

from noetl_contracts.ledger.records import FrameBin, FrameBins
from noetl_contracts.status import FrameStatus

Row = dict[str, Any]


class FrameSpan(NamedTuple):
    """What bins count of a frame; `seconds` is how long it took, once it has ended."""

    stage_id: int
    frame_id: int
    status: str
    row_count: int
    seconds: float | None


def build_span(
    *,
    stage_id: str,
    frame_id: str,
    status: str,
    row_count: int | None,
    started_at: datetime | None,
    ended_at: datetime | None,
) -> FrameSpan:
    """Keep of a frame what is counted."""
    return FrameSpan(
        stage_id=int(stage_id),
        frame_id=int(frame_id),
        status=str(status),
        row_count=row_count or 0,
        seconds=_measure_duration(started_at, ended_at),
    )


def bin_frames(rows: Iterable[Row], *, bins_max: int) -> FrameBins:
    """Share out the frames of each stage, in the order of their ids, over at most so many bins."""
    return bin_spans(
        (
            build_span(
                stage_id=row["stage_id"],
                frame_id=row["frame_id"],
                status=row["status"],
                row_count=row["row_count"],
                started_at=row["created_at"],
                ended_at=row["completed_at"],
            )
            for row in rows
        ),
        bins_max=bins_max,
    )


def bin_spans(spans: Iterable[FrameSpan], *, bins_max: int) -> FrameBins:
    """Share out frames as `bin_frames` does."""
    spans_by_stage: dict[int, list[FrameSpan]] = {}
    # A span begins with its stage and its frame, which differ: no more of it is compared.
    for span in sorted(spans):
        spans_by_stage.setdefault(span.stage_id, []).append(span)
    return FrameBins(
        bins=[
            _sum_bin(str(stage_id), place, part)
            for stage_id, of_stage in spans_by_stage.items()
            for place, part in enumerate(_split_evenly(of_stage, bins_max), start=1)
        ],
        stages=[
            _sum_bin(str(stage_id), 1, of_stage) for stage_id, of_stage in spans_by_stage.items()
        ],
    )


def _split_evenly(spans: list[FrameSpan], parts_max: int) -> Iterable[list[FrameSpan]]:
    """Split as `ntile` of SQL does: the first parts have one more."""
    parts = min(parts_max, len(spans))
    size, longer = divmod(len(spans), parts)
    begin = 0
    for place in range(parts):
        end = begin + size + (place < longer)
        yield spans[begin:end]
        begin = end


def _sum_bin(stage_id: str, place: int, spans: list[FrameSpan]) -> FrameBin:
    durations = sorted(span.seconds for span in spans if span.seconds is not None)
    statuses = [span.status for span in spans]
    completed_count = statuses.count(str(FrameStatus.COMPLETED))
    failed_count = sum(status in _FAILED for status in statuses)
    cancelled_count = statuses.count(str(FrameStatus.CANCELLED))
    return FrameBin(
        stage_id=stage_id,
        place=place,
        frames=len(spans),
        done=completed_count,
        failed=failed_count,
        cancelled=cancelled_count,
        running=len(spans) - completed_count - failed_count - cancelled_count,
        rows=sum(span.row_count for span in spans),
        min_s=durations[0] if durations else None,
        p50_s=_find_percentile(durations, 0.5),
        p95_s=_find_percentile(durations, 0.95),
        max_s=durations[-1] if durations else None,
        first=str(spans[0].frame_id),
        last=str(spans[-1].frame_id),
    )


def _measure_duration(started_at: datetime | None, ended_at: datetime | None) -> float | None:
    if started_at is None or ended_at is None:
        return None
    return max(0.0, (ended_at - started_at).total_seconds())


def _find_percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the first value with at least this share at or below it (`percentile_disc`)."""
    return ordered[ceil(share * len(ordered)) - 1] if ordered else None


_FAILED = frozenset({str(FrameStatus.FAILED), str(FrameStatus.ABANDONED)})
