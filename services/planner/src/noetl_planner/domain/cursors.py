"""Cursor loops: slots that claim frames, and the rule that tells when all has been drained.

A slot that finds nothing is dry, not finished. The stage closes when every slot is dry and the
latest claim of each came after the last frame commit of the epoch (`commits_floor` equals
`commits`). While other slots still run, a dry slot is asked again after a commit, at most once per
poll interval; once all are dry, those whose claim may be stale are asked again at once.
"""

from datetime import datetime, timedelta
from typing import Any

from noetl_contracts import ids
from noetl_contracts.events import loop as events
from noetl_contracts.events import stage as stage_events
from noetl_contracts.status import StageKind
from noetl_planner.domain import (
    ending,
    engines,
    evaluation,
    failure_policy,
    frame_policies,
    inside,
    issuing,
    items,
)
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Outcome, Refusal
from noetl_playbook import coercion
from noetl_playbook.model import Cursor, Loop
from noetl_playbook.scope import Scope
from noetl_replay.state import LoopState, RunState, SlotState, StageState

_INTERVAL = "poll_interval_ms"
_INTERVAL_MS_MAX = 86_400_000


def start(draft: Draft, run: RunState) -> None:
    """Open the stage and let every slot claim."""
    loop = _loop_of(draft, run)
    names = evaluation.scope(draft)
    slots = items.in_flight(draft, loop, names, run.step)
    policy = frame_policies.rendered(
        loop.spec.frame, names, step=run.step, within="loop.spec.frame"
    )
    policy.update(_polling(cursor_of(draft, run), names, run.step))
    if inside.is_local(draft.program.steps[run.step]):
        policy, slots = inside.of_claims(policy, slots), 1
    stage_id = ids.stage_id(run.run_id)
    draft.emit(
        stage_events.StageOpened(
            stage_id=stage_id,
            run_id=run.run_id,
            step=run.step,
            kind=StageKind.LOOP,
            slots=slots,
            frame_policy=policy,
            parent_stage_id=ending.parent_stage(draft),
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


def look_again(draft: Draft, run: RunState) -> Outcome | None:
    """Ask dry slots again where the drain rule wants it; close the stage when it is drained."""
    live, stage = parts(draft, run)
    if failure_policy.stops_early(draft.program.steps[run.step], live):
        ending.call_off(draft, run, failure_policy.FAILED_FAST)
        return _drained(draft, run)
    active = live.slots[: live.max_in_flight]
    if not all(slot.is_dry for slot in live.slots):
        for slot in active if draft.state.paused_at is None else ():
            if due_at(draft, run, slot) is not None and _is_due(draft, run, slot):
                _ask(draft, run, stage, slot)
        return None
    stale = [slot for slot in active if not slot.has_failed and is_stale(live, slot)]
    for slot in stale if draft.state.paused_at is None else ():
        _ask(draft, run, stage, slot)
    return None if stale else _drained(draft, run)


def match_slots(draft: Draft, run: RunState) -> None:
    """After the number of slots changed: let those beyond it end, and the others claim."""
    live, stage = parts(draft, run)
    for slot in live.slots[live.max_in_flight :]:
        if slot.command_id is not None:
            draft.to_pause[slot.command_id] = None
    if draft.state.paused_at is not None:
        return
    for slot in live.slots[: live.max_in_flight]:
        if slot.is_dry and slot.claimed_at is None and not slot.has_failed:
            _ask(draft, run, stage, slot)


def is_surplus(run: RunState, slot: int | None) -> bool:
    """Tell whether a slot is beyond the number that its loop has by now."""
    return slot is not None and run.loop is not None and slot >= run.loop.max_in_flight


def is_stale(live: LoopState, slot: SlotState) -> bool:
    """Tell whether a frame may have been committed after the slot's latest claim."""
    return slot.commits_floor < live.commits


def due_at(draft: Draft, run: RunState, slot: SlotState) -> datetime | None:
    """Return when a dry slot may be asked again while others run; None when there is no need."""
    live, stage = parts(draft, run)
    if not slot.is_dry or slot.has_failed or slot.claimed_at is None or not is_stale(live, slot):
        return None
    written = cursor_of(draft, run).options.poll_interval_ms
    interval_ms = stage.frame_policy.get(_INTERVAL, written)
    return slot.claimed_at + timedelta(milliseconds=float(interval_ms))


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


def _polling(cursor: Cursor, names: Scope, step: str) -> dict[str, Any]:
    """Check how often slots ask again; one that a template gives is kept with the stage."""
    field, written = f"loop.cursor.options.{_INTERVAL}", cursor.options.poll_interval_ms
    rendered = evaluation.render(written, names, step=step, field=field)
    interval_ms = coercion.number(rendered)
    if interval_ms is None or not 0 <= interval_ms <= _INTERVAL_MS_MAX:
        raise Refusal.of(
            "validation",
            step,
            f"step {step!r}, field {field!r}: {rendered!r:.80} is not a number of milliseconds "
            f"up to {_INTERVAL_MS_MAX}",
        )
    return {_INTERVAL: interval_ms} if isinstance(written, str) else {}


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
        attempts_max=frame_policies.attempts_max(stage),
        host=engines.host(draft, run),
    )


def _drained(draft: Draft, run: RunState) -> Outcome | None:
    spec = _loop_of(draft, run).spec
    _, stage = parts(draft, run)
    return items.finish(draft, run, collects=spec.collect == "all" and stage.frames > 0)


def _loop_of(draft: Draft, run: RunState) -> Loop:
    loop = draft.program.steps[run.step].loop
    assert loop is not None, "only loop steps come here"
    return loop
