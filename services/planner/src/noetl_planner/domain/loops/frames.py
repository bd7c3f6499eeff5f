"""Frames of a loop: minted, retried, and ended as committed, failed or lost."""

from datetime import timedelta
from typing import Any

from noetl_contracts import ids
from noetl_contracts.commands.loop_collections import CollectionCut, TakenItems
from noetl_contracts.errors import KINDS_NOT_RETRIED, ErrorObject
from noetl_contracts.events import frame_events, loop_events
from noetl_contracts.ids import FrameId, StageId
from noetl_contracts.requests import facts
from noetl_contracts.status import FrameStatus, StageKind
from noetl_planner.domain.decision import ctx_writes, evaluation
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import RunOutcome
from noetl_planner.domain.loops import (
    items,
    loop_collections,
    loop_ends,
    reruns,
)
from noetl_planner.domain.loops.loop_collections import LoopCollection
from noetl_planner.domain.steps import command_placement, commands, policies
from noetl_playbook.model.playbook import FanoutOpts, Loop
from noetl_replay.state import CommandState, FrameState, LoopState, RunState

MODES = frozenset({"chunked", "fanout"})
_RETRY_WAIT_S = 1.0
_RETRY_WAIT_MAX_S = 3600.0


def record_frame_end(draft: DecisionDraft, opened: FrameState, fact: facts.FrameClosed) -> None:
    """Accept what became of a frame's rows."""
    patch, refused = ctx_writes.store_ctx_patch(draft, fact.patch, step=opened.step)
    if fact.rows_failed or fact.error is not None or refused is not None:
        draft.append_event(
            frame_events.FrameFailed(
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
    draft.append_event(
        frame_events.FrameCommitted(
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


def fail_exhausted_frame(draft: DecisionDraft, lost: FrameState, reason: str) -> ErrorObject:
    """Fail a frame that was lost as often as it may be; return why."""
    error = ErrorObject(
        kind="frame_attempts_exhausted",
        code="FRAME_ATTEMPTS_EXHAUSTED",
        step=lost.step,
        attempt=lost.attempts,
        message=f"frame {lost.frame_id} of step {lost.step!r} was dispatched "
        f"{lost.attempts} times and lost each time: {reason}",
    )
    draft.append_event(
        frame_events.FrameFailed(
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


def start_frame_loop(draft: DecisionDraft, run: RunState) -> RunOutcome | None:
    """Fix and cut the collection, open the stage and hand out the first frames."""
    definition = draft.program.steps[run.step]
    loop = items.get_step_loop(definition)
    names = evaluation.build_scope(draft)
    taken_items = reruns.find_taken_items(draft.state, run)
    source = _find_rows_to_run(taken_items) or loop_collections.render_collection(
        draft, loop, names, step=run.step
    )
    total = source.total if taken_items is None else taken_items.total
    policy = policies.render_frame_policy(
        loop.spec.frame, names, step=run.step, within="loop.spec.frame"
    )
    in_flight = items.render_in_flight(draft, loop, names, run.step)
    is_fanout = loop.spec.mode == "fanout"
    if loop.spec.mode not in MODES:
        policy = items.build_items_policy(definition, {}, total, in_flight)
    if taken_items is not None and taken_items.frames is not None:
        cut = CollectionCut(
            items=source.total, units=taken_items.frames.cut.units, layout_ref=taken_items.todo_ref
        )
    else:
        cut, source = loop_collections.cut_collection(
            draft, loop, names, source, policy, step=run.step
        )
    if is_fanout:
        policy["max_attempts"] = _render_shard_retries(loop, names, run.step) + 1
    if taken_items is None and loop.spec.mode in MODES and items.is_local_loop(definition):
        attempts_max = int(policy.get("max_attempts", 1))
        policy, cut = items.build_units_policy(
            definition, policy, cut, in_flight=in_flight, attempts_max=attempts_max
        )
    stage_id = ids.derive_stage_id(run.run_id)
    draft.append_event(
        loop_events.StageOpened(
            stage_id=stage_id,
            run_id=run.run_id,
            step=run.step,
            kind=StageKind.FANOUT if is_fanout else StageKind.LOOP,
            slots=in_flight,
            frame_policy=policy,
            parent_stage_id=loop_ends.find_parent_stage(draft),
        )
    )
    counts_frames = policy.get("process") == "frame"
    draft.append_event(
        loop_events.LoopStarted(
            step=run.step,
            run_id=run.run_id,
            mode=loop.spec.mode,
            max_in_flight=in_flight,
            total=cut.total_units if counts_frames else total,
            stage_id=stage_id,
            cut=cut,
            counts_frames=counts_frames,
            notes=source.notes,
            taken=taken_items,
            **loop_collections.store_collection(draft, source, may_inline=False),
        )
    )
    if is_fanout:
        draft.append_event(
            loop_events.LoopFanoutStarted(
                step=run.step,
                run_id=run.run_id,
                stage_id=stage_id,
                items=reruns.count_all_items(draft.state, run, cut),
                shards=cut.total_units,
                max_in_flight=in_flight,
            )
        )
    return continue_frame_loop(draft, run)


def continue_frame_loop(draft: DecisionDraft, run: RunState) -> RunOutcome | None:
    """Hand out what may be handed out; have the results gathered once every unit has ended."""
    loop_state, cut = get_loop_and_cut(run)
    definition = draft.program.steps[run.step]
    stopping = policies.has_exceeded_failures(definition, loop_state)
    may_issue = not stopping and draft.state.paused_at is None
    if stopping:
        loop_ends.cancel_units_in_flight(draft, run, policies.FAILED_FAST)
    elif may_issue:
        redispatch_due_frames(draft, loop_state)
    unit = reruns.find_next_unit(draft, run, loop_state, cut)
    while may_issue and unit is not None and loop_state.in_flight < loop_state.max_in_flight:
        start_at, end = loop_collections.get_unit_bounds(draft, cut, unit)
        mint_frame(draft, run, unit, start=start_at, end=end)
        if _has_shards(loop_state):
            _append_shard_enqueued(draft, run, unit, end - start_at)
        unit = reruns.find_next_unit(draft, run, loop_state, cut)
    if stopping or (loop_state.in_flight == 0 and unit is None):
        spec = items.get_step_loop(definition).spec
        return items.finish_loop(draft, run, collects=spec.collect == "all" and cut.units > 0)
    return None


def mint_frame(
    draft: DecisionDraft,
    run: RunState,
    unit: int,
    *,
    start: int,
    end: int,
    index: int = 0,
    parent: FrameId | None = None,
) -> None:
    """Issue the command of a new frame over the items from `start_frame_loop` up to `end`."""
    loop_state, _ = get_loop_and_cut(run)
    assert loop_state.stage_id is not None, "framed loops have a stage"
    assert loop_state.collection_ref is not None, "frames read their items from a payload"
    stage = draft.state.stages[loop_state.stage_id]
    command_id = commands.issue_frame(
        draft,
        run,
        f"frame-{unit}-{index}",
        stage_id=loop_state.stage_id,
        attempts_max=policies.get_frame_attempts_max(stage),
        host=command_placement.choose_lane_host(draft, run),
    )
    draft.append_event(
        frame_events.FrameDispatched(
            frame_id=ids.derive_frame_id(loop_state.stage_id, slot=unit, frame_index=index),
            stage_id=loop_state.stage_id,
            step=run.step,
            command_id=command_id,
            slot=unit,
            frame_index=index,
            attempt=1,
            fence=1,
            row_count=end - start,
            rows_ref=loop_state.collection_ref,
            parent_frame_id=parent,
            start=start,
        )
    )


def get_loop_and_cut(run: RunState) -> tuple[LoopState, CollectionCut]:
    """Return the loop of a framed run and how it is cut."""
    loop_state = loop_ends.get_loop(run)
    assert loop_state.cut is not None, "only framed runs come here"
    return loop_state, loop_state.cut


def close_frame(
    draft: DecisionDraft, run: RunState, command_state: CommandState, fact: facts.FrameClosed
) -> bool:
    """Accept what became of a frame; False when the report changes nothing."""
    opened = draft.state.frames.get(fact.frame_id)
    if opened is None or command_state.frame_id != fact.frame_id or opened.retry_at is not None:
        return False
    commands.start_command(draft, command_state, fact.worker_id)
    _, refused = ctx_writes.store_ctx_patch(draft, fact.patch, step=run.step)
    if refused is not None:
        fact = _replace_with_error(fact, refused)
    if fact.error is not None and _can_retry(draft, run, opened, fact.error):
        schedule_frame_retry(draft, opened, fact.error, reason="its body failed")
        return True
    record_frame_end(draft, opened, fact)
    commands.complete_command(draft, command_state, worker_id=fact.worker_id, metrics=fact.metrics)
    if fact.rows_left:
        end = (opened.start or 0) + fact.row_count + fact.rows_left
        mint_frame(
            draft,
            run,
            opened.slot,
            start=end - fact.rows_left,
            end=end,
            index=opened.frame_index + 1,
            parent=opened.frame_id,
        )
    _append_shard_end(draft, run, opened, fact.error, key=fact.key)
    return True


def fail_frame(
    draft: DecisionDraft, run: RunState, command_state: CommandState, fact: facts.CommandFailed
) -> bool:
    """Accept that a frame's command could not run it at all."""
    opened = (
        draft.state.frames.get(command_state.frame_id)
        if command_state.frame_id is not None
        else None
    )
    if opened is None:
        return False
    return close_frame(
        draft,
        run,
        command_state,
        facts.FrameClosed(
            command_id=command_state.command_id,
            attempt=command_state.attempt,
            worker_id=fact.worker_id,
            stage_id=opened.stage_id,
            frame_id=opened.frame_id,
            slot=opened.slot,
            frame_index=opened.frame_index,
            row_count=opened.row_count,
            rows_failed=opened.row_count,
            error=fact.error,
        ),
    )


def lose_frame(
    draft: DecisionDraft,
    run: RunState,
    command_state: CommandState,
    reason: str,
    *,
    is_release: bool,
) -> bool:
    """Hand a lost frame out again with its own rows, or fail it when its attempts are used up."""
    lost = (
        draft.state.frames.get(command_state.frame_id)
        if command_state.frame_id is not None
        else None
    )
    if lost is None or lost.retry_at is not None:
        return False
    stage = draft.state.stages[lost.stage_id]
    is_shard = _has_shards(run.loop)
    if is_shard and not is_release and lost.attempts < policies.get_frame_attempts_max(stage):
        schedule_frame_retry(draft, lost, None, reason=reason)
        return True
    commands.abandon_frame(draft, lost, reason)
    if is_release or lost.attempts < policies.get_frame_attempts_max(stage):
        redispatch_frame(draft, lost, reason)
        return True
    error = fail_exhausted_frame(draft, lost, reason)
    commands.fail_command(draft, command_state, error, worker_id=command_state.worker_id)
    _append_shard_end(draft, run, lost, error, key=None)
    return True


def schedule_frame_retry(
    draft: DecisionDraft, lost: FrameState, error: ErrorObject | None, *, reason: str
) -> None:
    """Take a shard back, to be handed out again after a wait that doubles from a second."""
    wait_s = min(_RETRY_WAIT_S * 2 ** (lost.attempts - 1), _RETRY_WAIT_MAX_S)
    retry_at = draft.now + timedelta(seconds=wait_s)
    commands.abandon_frame(draft, lost, reason, retry_at=retry_at, error=error)


def redispatch_due_frames(draft: DecisionDraft, loop_state: LoopState) -> None:
    """Hand out again what has waited long enough."""
    for frame_id in [item for item, at in loop_state.retry_at.items() if at <= draft.now]:
        redispatch_frame(draft, draft.state.frames[frame_id], "retry")


def redispatch_frame(draft: DecisionDraft, lost: FrameState, reason: str) -> None:
    """Send a frame's command again, for the next attempt of the same rows."""
    assert lost.status is FrameStatus.ABANDONED, "only an abandoned frame is handed out again"
    holder = draft.state.commands[lost.command_id]
    commands.reissue_command(draft, holder, reason)
    draft.append_event(
        frame_events.FrameDispatched(
            frame_id=lost.frame_id,
            stage_id=lost.stage_id,
            step=lost.step,
            command_id=lost.command_id,
            slot=lost.slot,
            frame_index=lost.frame_index,
            attempt=lost.attempts + 1,
            fence=draft.state.commands[lost.command_id].attempt,
            row_count=lost.row_count,
            rows_ref=lost.rows_ref,
            parent_frame_id=lost.parent_frame_id,
            start=lost.start,
        )
    )


def _find_rows_to_run(takeover: TakenItems | None) -> LoopCollection | None:
    """Return the rows that run where others are taken over, kept as a list of their own."""
    if takeover is None or takeover.frames is None:
        return None
    return LoopCollection(
        form=takeover.frames.rows_form, total=takeover.todo, ref=takeover.frames.rows_ref
    )


def _has_shards(loop_state: LoopState | None) -> bool:
    """Tell whether a loop's frames are shards that the planner knows one by one."""
    return (
        loop_state is not None
        and loop_state.mode == "fanout"
        and loop_state.cut is not None
        and not loop_state.cut.inside
    )


def _can_retry(draft: DecisionDraft, run: RunState, opened: FrameState, error: ErrorObject) -> bool:
    if not _has_shards(run.loop) or error.kind in KINDS_NOT_RETRIED:
        return False
    return opened.attempts < policies.get_frame_attempts_max(draft.state.stages[opened.stage_id])


def _render_shard_retries(loop: Loop, names: Any, step: str) -> int:
    field = "loop.spec.fanout.max_shard_retries"
    fanout = loop.spec.fanout or FanoutOpts()
    rendered = evaluation.render_value(fanout.max_shard_retries, names, step=step, field=field)
    return evaluation.check_bounded_number(rendered, step=step, field=field, least=0, most=999)


def _replace_with_error(fact: facts.FrameClosed, error: ErrorObject) -> facts.FrameClosed:
    return facts.FrameClosed(
        command_id=fact.command_id,
        attempt=fact.attempt,
        worker_id=fact.worker_id,
        stage_id=fact.stage_id,
        frame_id=fact.frame_id,
        slot=fact.slot,
        frame_index=fact.frame_index,
        row_count=fact.row_count + fact.rows_left,
        rows_failed=fact.row_count + fact.rows_left,
        error=error,
    )


def _append_shard_enqueued(draft: DecisionDraft, run: RunState, shard: int, count: int) -> None:
    stage_id = ids.derive_stage_id(run.run_id)
    draft.append_event(
        loop_events.LoopShardEnqueued(
            step=run.step,
            run_id=run.run_id,
            stage_id=stage_id,
            frame_id=ids.derive_frame_id(stage_id, slot=shard, frame_index=0),
            shard=shard,
            items=count,
        )
    )


def _append_shard_end(
    draft: DecisionDraft,
    run: RunState,
    ended: FrameState,
    error: ErrorObject | None,
    *,
    key: str | None,
) -> None:
    if not _has_shards(run.loop):
        return
    about: dict[str, Any] = {
        "step": run.step,
        "run_id": run.run_id,
        "stage_id": StageId(ended.stage_id),
        "frame_id": ended.frame_id,
        "shard": ended.slot,
        "attempt": ended.attempts,
        "key": key,
    }
    if error is None:
        draft.append_event(loop_events.LoopShardDone(**about))
    else:
        draft.append_event(loop_events.LoopShardFailed(error=error, **about))
