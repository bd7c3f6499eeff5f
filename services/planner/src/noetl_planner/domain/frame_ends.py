"""How a frame ends: committed, failed, or lost too often."""

from noetl_contracts import facts
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import frame
from noetl_planner.domain import growth
from noetl_planner.domain.draft import Draft
from noetl_replay.state import FrameState


def terminate(draft: Draft, opened: FrameState, fact: facts.FrameClosed) -> None:
    """Accept what became of a frame's rows."""
    patch, refused = growth.carried(draft, fact.patch, step=opened.step)
    if fact.rows_failed or fact.error is not None or refused is not None:
        draft.emit(
            frame.FrameFailed(
                frame_id=opened.frame_id,
                stage_id=opened.stage_id,
                step=opened.step,
                slot=opened.slot,
                frame_index=opened.frame_index,
                attempt=opened.attempts,
                row_count=fact.row_count,
                rows_failed=fact.rows_failed if refused is None else fact.row_count,
                error=fact.error or refused or ErrorObject(kind="unknown", message="rows failed"),
                worker_id=fact.worker_id,
                patch=patch,
                metrics=fact.metrics,
                result=fact.result,
                rows_left=fact.rows_left,
                key=fact.key,
                notes=fact.notes,
                units=fact.units,
                tasks=fact.tasks,
            )
        )
        return
    draft.emit(
        frame.FrameCommitted(
            frame_id=opened.frame_id,
            stage_id=opened.stage_id,
            step=opened.step,
            slot=opened.slot,
            frame_index=opened.frame_index,
            attempt=opened.attempts,
            row_count=fact.row_count,
            worker_id=fact.worker_id,
            result=fact.result,
            patch=patch,
            metrics=fact.metrics,
            parent_frame_id=opened.parent_frame_id,
            rows_left=fact.rows_left,
            key=fact.key,
            notes=fact.notes,
            units=fact.units,
            tasks=fact.tasks,
        )
    )


def exhaust(draft: Draft, lost: FrameState, reason: str) -> ErrorObject:
    """Fail a frame that was lost as often as it may be; return why."""
    error = ErrorObject(
        kind="frame_attempts_exhausted",
        code="FRAME_ATTEMPTS_EXHAUSTED",
        step=lost.step,
        attempt=lost.attempts,
        message=f"frame {lost.frame_id} of step {lost.step!r} was dispatched "
        f"{lost.attempts} times and lost each time: {reason}",
    )
    draft.emit(
        frame.FrameFailed(
            frame_id=lost.frame_id,
            stage_id=lost.stage_id,
            step=lost.step,
            slot=lost.slot,
            frame_index=lost.frame_index,
            attempt=lost.attempts,
            row_count=lost.row_count,
            rows_failed=lost.row_count,
            error=error,
        )
    )
    return error
