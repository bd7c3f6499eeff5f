"""Cursor loops: slots that claim frames, and the rule that tells when all has been drained.

A slot that finds nothing is dry, not finished. The stage closes when every slot is dry and the
latest claim of each came after the last frame commit of the epoch (`commits_floor` equals
`commits`). While other slots still run, a dry slot is asked again after a commit, at most once per
poll interval; once all are dry, those whose claim may be stale are asked again at once.
"""

from datetime import datetime, timedelta
from typing import Any

from noetl_contracts import ids
from noetl_contracts.events import loop_events
from noetl_contracts.status import StageKind
from noetl_planner.domain.decision import evaluation
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal, RunOutcome
from noetl_planner.domain.loops import items, loop_ends
from noetl_planner.domain.steps import command_placement, commands, policies
from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import Cursor, Loop
from noetl_playbook.templates.scope import TemplateScope
from noetl_replay.state import LoopState, RunState, SlotState, StageState

_INTERVAL = "poll_interval_ms"
_INTERVAL_MS_MAX = 86_400_000


def start_cursor_loop(draft: DecisionDraft, run: RunState) -> None:
    """Open the stage and let every slot claim."""
    loop = _get_loop(draft, run)
    names = evaluation.build_scope(draft)
    slots = items.render_in_flight(draft, loop, names, run.step)
    policy = policies.render_frame_policy(
        loop.spec.frame, names, step=run.step, within="loop.spec.frame"
    )
    policy.update(_render_poll_interval(get_cursor(draft, run), names, run.step))
    if items.is_local_loop(draft.program.steps[run.step]):
        policy, slots = items.build_claims_policy(policy, slots), 1
    stage_id = ids.derive_stage_id(run.run_id)
    draft.append_event(
        loop_events.StageOpened(
            stage_id=stage_id,
            run_id=run.run_id,
            step=run.step,
            kind=StageKind.LOOP,
            slots=slots,
            frame_policy=policy,
            parent_stage_id=loop_ends.find_parent_stage(draft),
        )
    )
    draft.append_event(
        loop_events.LoopStarted(
            step=run.step,
            run_id=run.run_id,
            mode=loop.spec.mode,
            max_in_flight=slots,
            stage_id=stage_id,
        )
    )
    loop_state, stage = get_loop_and_stage(draft, run)
    for slot in loop_state.slots:
        _issue_slot(draft, run, stage, slot)


def continue_cursor_loop(draft: DecisionDraft, run: RunState) -> RunOutcome | None:
    """Ask dry slots again where the drain rule wants it; close the stage when it is drained."""
    loop_state, stage = get_loop_and_stage(draft, run)
    if policies.has_exceeded_failures(draft.program.steps[run.step], loop_state):
        loop_ends.cancel_units_in_flight(draft, run, policies.FAILED_FAST)
        return _finish_drained_loop(draft, run)
    active = loop_state.slots[: loop_state.max_in_flight]
    if not all(slot.is_dry for slot in loop_state.slots):
        for slot in active if draft.state.paused_at is None else ():
            if find_slot_due_at(draft, run, slot) is not None and _is_slot_due(draft, run, slot):
                _issue_slot(draft, run, stage, slot)
        return None
    stale = [slot for slot in active if not slot.has_failed and is_stale_slot(loop_state, slot)]
    for slot in stale if draft.state.paused_at is None else ():
        _issue_slot(draft, run, stage, slot)
    return None if stale else _finish_drained_loop(draft, run)


def resize_slots(draft: DecisionDraft, run: RunState) -> None:
    """After the number of slots changed: let those beyond it end, and the others claim."""
    loop_state, stage = get_loop_and_stage(draft, run)
    for slot in loop_state.slots[loop_state.max_in_flight :]:
        if slot.command_id is not None:
            draft.to_pause[slot.command_id] = None
    if draft.state.paused_at is not None:
        return
    for slot in loop_state.slots[: loop_state.max_in_flight]:
        if slot.is_dry and slot.claimed_at is None and not slot.has_failed:
            _issue_slot(draft, run, stage, slot)


def is_surplus_slot(run: RunState, slot: int | None) -> bool:
    """Tell whether a slot is beyond the number that its loop has by now."""
    return slot is not None and run.loop is not None and slot >= run.loop.max_in_flight


def is_stale_slot(loop_state: LoopState, slot: SlotState) -> bool:
    """Tell whether a frame may have been committed after the slot's latest claim."""
    return slot.commits_floor < loop_state.commits


def find_slot_due_at(draft: DecisionDraft, run: RunState, slot: SlotState) -> datetime | None:
    """Return when a dry slot may be asked again while others run; None when there is no need."""
    loop_state, stage = get_loop_and_stage(draft, run)
    if (
        not slot.is_dry
        or slot.has_failed
        or slot.claimed_at is None
        or not is_stale_slot(loop_state, slot)
    ):
        return None
    written = get_cursor(draft, run).options.poll_interval_ms
    interval_ms = stage.frame_policy.get(_INTERVAL, written)
    return slot.claimed_at + timedelta(milliseconds=float(interval_ms))


def get_loop_and_stage(draft: DecisionDraft, run: RunState) -> tuple[LoopState, StageState]:
    """Return the loop and stage of a cursor run."""
    assert run.loop is not None, "only cursor runs come here"
    assert run.loop.stage_id is not None, "a cursor loop has a stage"
    return run.loop, draft.state.stages[run.loop.stage_id]


def get_cursor(draft: DecisionDraft, run: RunState) -> Cursor:
    """Return the cursor that a run drains."""
    cursor = _get_loop(draft, run).cursor
    assert cursor is not None, "only cursor runs come here"
    return cursor


def _render_poll_interval(cursor: Cursor, names: TemplateScope, step: str) -> dict[str, Any]:
    """Check how often slots ask again; one that a template gives is kept with the stage."""
    field, written = f"loop.cursor.options.{_INTERVAL}", cursor.options.poll_interval_ms
    rendered = evaluation.render_value(written, names, step=step, field=field)
    interval_ms = coercion.coerce_number(rendered)
    if interval_ms is None or not 0 <= interval_ms <= _INTERVAL_MS_MAX:
        raise Refusal.for_step(
            "validation",
            step,
            f"step {step!r}, field {field!r}: {rendered!r:.80} is not a number of milliseconds "
            f"up to {_INTERVAL_MS_MAX}",
        )
    return {_INTERVAL: interval_ms} if isinstance(written, str) else {}


def _is_slot_due(draft: DecisionDraft, run: RunState, slot: SlotState) -> bool:
    due = find_slot_due_at(draft, run, slot)
    return due is not None and due <= draft.now


def _issue_slot(draft: DecisionDraft, run: RunState, stage: StageState, slot: SlotState) -> None:
    commands.issue_slot(
        draft,
        run,
        slot.slot,
        round_=slot.rounds,
        stage_id=stage.stage_id,
        attempts_max=policies.get_frame_attempts_max(stage),
        host=command_placement.choose_lane_host(draft, run),
    )


def _finish_drained_loop(draft: DecisionDraft, run: RunState) -> RunOutcome | None:
    spec = _get_loop(draft, run).spec
    _, stage = get_loop_and_stage(draft, run)
    return items.finish_loop(draft, run, collects=spec.collect == "all" and stage.frames > 0)


def _get_loop(draft: DecisionDraft, run: RunState) -> Loop:
    loop = draft.program.steps[run.step].loop
    assert loop is not None, "only loop steps come here"
    return loop
