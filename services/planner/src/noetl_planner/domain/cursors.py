"""Cursor loops: slots that claim frames, and the rule that tells when all has been drained.

A slot that finds nothing is dry, not finished. The stage closes when every slot is dry and the
latest claim of each came after the last frame commit of the epoch (`commits_floor` equals
`commits`). While other slots still run, a dry slot is asked again after a commit, at most once per
poll interval; once all are dry, those whose claim may be stale are asked again at once.
"""

from datetime import datetime, timedelta
from typing import Any

from noetl_contracts import codec, ids
from noetl_contracts.events import loop as events
from noetl_contracts.events import stage as stage_events
from noetl_contracts.status import RunStatus, StageKind, StageStatus
from noetl_planner.domain import evaluation, failure_policy, issuing, limits
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Outcome
from noetl_playbook.model import Cursor, Loop
from noetl_playbook.scope import Scope
from noetl_replay.state import LoopState, RunState, SlotState, StageState

_FRAME_NUMBERS = {
    "max_rows": (1, 1_000_000),
    "max_seconds": (1, 86_400),
    "max_bytes": (1, 1 << 34),
    "lease_seconds": (1, 86_400),
    "heartbeat_seconds": (1, 43_200),
    "row_concurrency": (1, 10_000),
    "max_attempts": (1, 1_000),
}


def start(draft: Draft, run: RunState) -> None:
    """Open the stage and let every slot claim."""
    loop = _loop_of(draft, run)
    names = evaluation.scope(draft)
    field = "loop.spec.max_in_flight"
    slots = evaluation.number(
        evaluation.render(loop.spec.max_in_flight, names, step=run.step, field=field),
        step=run.step,
        field=field,
        least=1,
        most=draft.limits.in_flight_max,
        limit=limits.MAX_IN_FLIGHT,
    )
    policy = frame_policy(loop, names, run.step)
    stage_id = ids.stage_id(run.run_id)
    draft.emit(
        stage_events.StageOpened(
            stage_id=stage_id,
            run_id=run.run_id,
            step=run.step,
            kind=StageKind.LOOP,
            slots=slots,
            frame_policy=policy,
        )
    )
    draft.emit(
        events.LoopStarted(
            step=run.step,
            run_id=run.run_id,
            mode=loop.spec.mode,
            max_in_flight=slots,
            stage_id=stage_id,
        )
    )
    live, stage = parts(draft, run)
    for slot in live.slots:
        _ask(draft, run, stage, slot)


def frame_policy(loop: Loop, names: Scope, step: str) -> dict[str, Any]:
    """Render a frame policy's numbers and check them (language, 7.6)."""
    policy: dict[str, Any] = codec.builtins(loop.spec.frame) if loop.spec.frame else {}
    for key, (least, most) in _FRAME_NUMBERS.items():
        if key in policy:
            field = f"loop.spec.frame.{key}"
            rendered = evaluation.render(policy[key], names, step=step, field=field)
            policy[key] = evaluation.number(
                rendered, step=step, field=field, least=least, most=most
            )
    for key in ("engine", "transaction"):
        if key in policy:
            field = f"loop.spec.frame.{key}"
            policy[key] = evaluation.render(policy[key], names, step=step, field=field)
    return policy


def attempts_max(stage: StageState) -> int:
    """Return how often one frame may be dispatched."""
    return int(stage.frame_policy.get("max_attempts", 3))


def look_again(draft: Draft, run: RunState) -> Outcome | None:
    """Ask dry slots again where the drain rule wants it; close the stage when it is drained."""
    live, stage = parts(draft, run)
    if not all(slot.is_dry for slot in live.slots):
        for slot in live.slots if draft.state.paused_at is None else ():
            if due_at(draft, run, slot) is not None and _is_due(draft, run, slot):
                _ask(draft, run, stage, slot)
        return None
    stale = [slot for slot in live.slots if not slot.has_failed and is_stale(live, slot)]
    for slot in stale if draft.state.paused_at is None else ():
        _ask(draft, run, stage, slot)
    return None if stale else _close(draft, run)


def is_stale(live: LoopState, slot: SlotState) -> bool:
    """Tell whether a frame may have been committed after the slot's latest claim."""
    return slot.commits_floor < live.commits


def due_at(draft: Draft, run: RunState, slot: SlotState) -> datetime | None:
    """Return when a dry slot may be asked again while others run; None when there is no need."""
    live, _ = parts(draft, run)
    if not slot.is_dry or slot.has_failed or slot.claimed_at is None or not is_stale(live, slot):
        return None
    interval_ms = float(cursor_of(draft, run).options.poll_interval_ms)
    return slot.claimed_at + timedelta(milliseconds=interval_ms)


def close_early(draft: Draft, run: RunState) -> None:
    """Close the stage of a run that is being called off."""
    if run.loop is None or run.loop.stage_id is None:
        return
    _, stage = parts(draft, run)
    _close_stage(draft, stage, StageStatus.CANCELLED)


def parts(draft: Draft, run: RunState) -> tuple[LoopState, StageState]:
    """Return the loop and stage of a cursor run."""
    assert run.loop is not None, "only cursor runs come here"
    assert run.loop.stage_id is not None, "a cursor loop has a stage"
    return run.loop, draft.state.stages[run.loop.stage_id]


def cursor_of(draft: Draft, run: RunState) -> Cursor:
    """Return the cursor that a run drains."""
    cursor = _loop_of(draft, run).cursor
    assert cursor is not None, "only cursor runs come here"
    return cursor


def _is_due(draft: Draft, run: RunState, slot: SlotState) -> bool:
    due = due_at(draft, run, slot)
    return due is not None and due <= draft.now


def _ask(draft: Draft, run: RunState, stage: StageState, slot: SlotState) -> None:
    issuing.issue_slot(
        draft,
        run,
        slot.slot,
        round_=slot.rounds,
        stage_id=stage.stage_id,
        attempts_max=attempts_max(stage),
    )


def _close(draft: Draft, run: RunState) -> Outcome:
    live, stage = parts(draft, run)
    stats = events.LoopStats(
        total=live.total,
        success=live.success,
        failed=live.failed,
        retried=live.retried,
        frames=stage.frames,
        frames_failed=stage.frames_failed,
        rows_claimed=stage.rows,
    )
    error = failure_policy.verdict(draft.program.steps[run.step], live, stats)
    _close_stage(draft, stage, StageStatus.FAILED if error else StageStatus.COMPLETED)
    result = evaluation.loop_result([], codec.builtins(stats))
    about: dict[str, Any] = {
        "step": run.step,
        "run_id": run.run_id,
        "stats": stats,
        "stage_id": stage.stage_id,
        "result": result,
    }
    if error is None:
        draft.emit(events.LoopDone(**about))
        return Outcome(status=RunStatus.COMPLETED)
    draft.emit(events.LoopFailed(error=error, **about))
    return Outcome(status=RunStatus.FAILED, error=error)


def _close_stage(draft: Draft, stage: StageState, status: StageStatus) -> None:
    if status is StageStatus.CANCELLED:
        _abandon_frames(draft, stage)
    draft.emit(
        stage_events.StageClosed(
            stage_id=stage.stage_id,
            run_id=stage.run_id,
            step=stage.step,
            status=status,
            frames=stage.frames,
            rows=stage.rows,
            frames_failed=stage.frames_failed,
        )
    )


def _abandon_frames(draft: Draft, stage: StageState) -> None:
    for live in [one for one in draft.state.frames.values() if one.stage_id == stage.stage_id]:
        issuing.abandon(draft, live, "cancelled")


def _loop_of(draft: Draft, run: RunState) -> Loop:
    loop = draft.program.steps[run.step].loop
    assert loop is not None, "only loop steps come here"
    return loop
