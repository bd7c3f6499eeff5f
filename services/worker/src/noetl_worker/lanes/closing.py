"""The fact that ends a frame, whoever ran it."""

from typing import Any

from noetl_chassis import instruments, names
from noetl_contracts.commands import Command
from noetl_contracts.facts import FrameClosed
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.slicing import UnitsEnd
from noetl_worker.domain.frames import Frame, FrameResult
from noetl_worker.lanes.hands import Hands

OVERSIZE_NOTE = "frame_oversize"


def closed(
    command: Command,
    hands: Hands,
    frame: Frame,
    result: FrameResult,
    envelope: ResultEnvelope | None,
    units: UnitsEnd | None = None,
) -> FrameClosed:
    """Say what became of a frame's rows, and measure it."""
    outcome = "failed" if result.rows_failed else "committed"
    instruments.count(names.FRAMES_ENDED, labels={names.OUTCOME: outcome})
    instruments.record(names.FRAME_DURATION, result.duration_s)
    notes = _notes(frame)
    return FrameClosed(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=hands.worker_id,
        stage_id=frame.stage_id,
        frame_id=frame.frame_id,
        slot=frame.slot,
        frame_index=frame.frame_index,
        row_count=len(frame.rows) - len(result.remaining) - result.rows_cancelled,
        rows_failed=result.rows_failed,
        error=result.error,
        result=envelope,
        patch=result.patch,
        metrics=_metrics(frame, result, notes),
        tasks=result.metrics,
        parent_frame_id=frame.parent_frame_id,
        rows_left=len(result.remaining),
        key=frame.sliced.shard_key if frame.sliced is not None else None,
        notes=notes,
        units=units,
    )


def _notes(frame: Frame) -> list[str]:
    is_claim = frame.sliced is None and frame.parent_frame_id is None
    return [OVERSIZE_NOTE] if is_claim and len(frame.rows) > frame.policy.max_rows else []


def _metrics(frame: Frame, result: FrameResult, notes: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rows_done": result.rows_done,
        "duration_ms": round(result.duration_s * 1000),
    }
    if notes:
        found["notes"] = notes
    over_s = result.duration_s - frame.policy.max_seconds
    if frame.policy.process == "frame" and over_s > 0:
        # A body that takes the whole frame is never cut short.
        found["overrun_ms"] = round(over_s * 1000)
    if result.remaining:
        found["rows_left"] = len(result.remaining)
    return found
