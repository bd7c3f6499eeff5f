"""Loops whose units are frames that the planner mints: chunks of a collection, and shards.

One frame is one command. Rows that a frame did not start in its time become a frame of their own,
its continuation, which runs next under the same unit.
"""

from datetime import timedelta
from typing import Any

from noetl_contracts import facts, ids
from noetl_contracts.errors import KINDS_NOT_RETRIED, ErrorObject
from noetl_contracts.events import fanout, frame
from noetl_contracts.events import loop as events
from noetl_contracts.events import stage as stage_events
from noetl_contracts.ids import FrameId, StageId
from noetl_contracts.slicing import Cut
from noetl_contracts.status import FrameStatus, StageKind
from noetl_contracts.taken_items import TakenItems
from noetl_planner.domain import (
    cutting,
    ending,
    engines,
    evaluation,
    failure_policy,
    frame_ends,
    frame_policies,
    growth,
    inside,
    issuing,
    items,
    sources,
    taken_items,
)
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Outcome
from noetl_planner.domain.sources import Source
from noetl_playbook.model import FanoutOpts, Loop
from noetl_replay.state import CommandState, FrameState, LoopState, RunState

MODES = frozenset({"chunked", "fanout"})

_RETRY_WAIT_S = 1.0
_RETRY_WAIT_MAX_S = 3600.0


def start(draft: Draft, run: RunState) -> Outcome | None:
    """Fix and cut the collection, open the stage and hand out the first frames."""
    definition = draft.program.steps[run.step]
    loop = items.loop_of(definition)
    names = evaluation.scope(draft)
    taken = taken_items.find_taken(draft.state, run)
    source = _rows_to_run(taken) or sources.find(draft, loop, names, step=run.step)
    total = source.total if taken is None else taken.total
    policy = frame_policies.rendered(
        loop.spec.frame, names, step=run.step, within="loop.spec.frame"
    )
    in_flight = items.in_flight(draft, loop, names, run.step)
    is_fanout = loop.spec.mode == "fanout"
    if loop.spec.mode not in MODES:
        policy = inside.of_items(definition, {}, total, in_flight)
    if taken is not None and taken.frames is not None:
        cut = Cut(items=source.total, units=taken.frames.cut.units, layout_ref=taken.todo_ref)
    else:
        cut, source = cutting.cut(draft, loop, names, source, policy, step=run.step)
    if is_fanout:
        policy["max_attempts"] = _retries(loop, names, run.step) + 1
    if taken is None and loop.spec.mode in MODES and inside.is_local(definition):
        attempts_max = int(policy.get("max_attempts", 1))
        policy, cut = inside.of_units(
            definition, policy, cut, in_flight=in_flight, attempts_max=attempts_max
        )
    stage_id = ids.stage_id(run.run_id)
    draft.emit(
        stage_events.StageOpened(
            stage_id=stage_id,
            run_id=run.run_id,
            step=run.step,
            kind=StageKind.FANOUT if is_fanout else StageKind.LOOP,
            slots=in_flight,
            frame_policy=policy,
            parent_stage_id=ending.parent_stage(draft),
        )
    )
    counts_frames = policy.get("process") == "frame"
    draft.emit(
        events.LoopStarted(
            step=run.step,
            run_id=run.run_id,
            mode=loop.spec.mode,
            max_in_flight=in_flight,
            total=cut.units_all if counts_frames else total,
            stage_id=stage_id,
            cut=cut,
            counts_frames=counts_frames,
            notes=source.notes,
            taken=taken,
            **sources.keep(draft, source, may_inline=False),
        )
    )
    if is_fanout:
        draft.emit(
            fanout.LoopFanoutStarted(
                step=run.step,
                run_id=run.run_id,
                stage_id=stage_id,
                items=taken_items.count_items(draft.state, run, cut),
                shards=cut.units_all,
                max_in_flight=in_flight,
            )
        )
    return go_on(draft, run)


def go_on(draft: Draft, run: RunState) -> Outcome | None:
    """Hand out what may be handed out; have the results gathered once every unit has ended."""
    live, cut = parts(run)
    definition = draft.program.steps[run.step]
    stopping = failure_policy.stops_early(definition, live)
    may_issue = not stopping and draft.state.paused_at is None
    if stopping:
        ending.call_off(draft, run, failure_policy.FAILED_FAST)
    elif may_issue:
        redispatch_due(draft, live)
    unit = taken_items.find_next_unit(draft, run, live, cut)
    while may_issue and unit is not None and live.in_flight < live.max_in_flight:
        start_at, end = cutting.bounds(draft, cut, unit)
        mint(draft, run, unit, start=start_at, end=end)
        if _is_shards(live):
            _enqueued(draft, run, unit, end - start_at)
        unit = taken_items.find_next_unit(draft, run, live, cut)
    if stopping or (live.in_flight == 0 and unit is None):
        spec = items.loop_of(definition).spec
        return items.finish(draft, run, collects=spec.collect == "all" and cut.units > 0)
    return None


def mint(
    draft: Draft,
    run: RunState,
    unit: int,
    *,
    start: int,
    end: int,
    index: int = 0,
    parent: FrameId | None = None,
) -> None:
    """Issue the command of a new frame over the items from `start` up to `end`."""
    live, _ = parts(run)
    assert live.stage_id is not None, "framed loops have a stage"
    assert live.collection_ref is not None, "frames read their items from a payload"
    stage = draft.state.stages[live.stage_id]
    command_id = issuing.issue_frame(
        draft,
        run,
        f"frame-{unit}-{index}",
        stage_id=live.stage_id,
        attempts_max=frame_policies.attempts_max(stage),
        host=engines.host(draft, run),
    )
    draft.emit(
        frame.FrameDispatched(
            frame_id=ids.frame_id(live.stage_id, slot=unit, frame_index=index),
            stage_id=live.stage_id,
            step=run.step,
            command_id=command_id,
            slot=unit,
            frame_index=index,
            attempt=1,
            fence=1,
            row_count=end - start,
            rows_ref=live.collection_ref,
            parent_frame_id=parent,
            start=start,
        )
    )


def parts(run: RunState) -> tuple[LoopState, Cut]:
    """Return the loop of a framed run and how it is cut."""
    live = ending.live_loop(run)
    assert live.cut is not None, "only framed runs come here"
    return live, live.cut


def close(draft: Draft, run: RunState, live: CommandState, fact: facts.FrameClosed) -> bool:
    """Accept what became of a frame; False when the report changes nothing."""
    opened = draft.state.frames.get(fact.frame_id)
    if opened is None or live.frame_id != fact.frame_id or opened.retry_at is not None:
        return False
    issuing.start(draft, live, fact.worker_id)
    _, refused = growth.carried(draft, fact.patch, step=run.step)
    if refused is not None:
        fact = _with_error(fact, refused)
    if fact.error is not None and _may_retry(draft, run, opened, fact.error):
        retry_later(draft, opened, fact.error, reason="its body failed")
        return True
    frame_ends.terminate(draft, opened, fact)
    issuing.complete(draft, live, worker_id=fact.worker_id, metrics=fact.metrics)
    if fact.rows_left:
        end = (opened.start or 0) + fact.row_count + fact.rows_left
        mint(
            draft,
            run,
            opened.slot,
            start=end - fact.rows_left,
            end=end,
            index=opened.frame_index + 1,
            parent=opened.frame_id,
        )
    _tell_shard(draft, run, opened, fact.error, key=fact.key)
    return True


def fail(draft: Draft, run: RunState, live: CommandState, fact: facts.CommandFailed) -> bool:
    """Accept that a frame's command could not run it at all."""
    opened = draft.state.frames.get(live.frame_id) if live.frame_id is not None else None
    if opened is None:
        return False
    return close(
        draft,
        run,
        live,
        facts.FrameClosed(
            command_id=live.command_id,
            attempt=live.attempt,
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


def lose(draft: Draft, run: RunState, live: CommandState, reason: str, *, is_release: bool) -> bool:
    """Hand a lost frame out again with its own rows, or fail it when its attempts are used up."""
    lost = draft.state.frames.get(live.frame_id) if live.frame_id is not None else None
    if lost is None or lost.retry_at is not None:
        return False
    stage = draft.state.stages[lost.stage_id]
    is_shard = _is_shards(run.loop)
    if is_shard and not is_release and lost.attempts < frame_policies.attempts_max(stage):
        retry_later(draft, lost, None, reason=reason)
        return True
    issuing.abandon(draft, lost, reason)
    if is_release or lost.attempts < frame_policies.attempts_max(stage):
        redispatch(draft, lost, reason)
        return True
    error = frame_ends.exhaust(draft, lost, reason)
    issuing.fail(draft, live, error, worker_id=live.worker_id)
    _tell_shard(draft, run, lost, error, key=None)
    return True


def retry_later(draft: Draft, lost: FrameState, error: ErrorObject | None, *, reason: str) -> None:
    """Take a shard back, to be handed out again after a wait that doubles from a second."""
    wait_s = min(_RETRY_WAIT_S * 2 ** (lost.attempts - 1), _RETRY_WAIT_MAX_S)
    retry_at = draft.now + timedelta(seconds=wait_s)
    issuing.abandon(draft, lost, reason, retry_at=retry_at, error=error)


def redispatch_due(draft: Draft, live: LoopState) -> None:
    """Hand out again what has waited long enough."""
    for frame_id in [one for one, at in live.retry_at.items() if at <= draft.now]:
        redispatch(draft, draft.state.frames[frame_id], "retry")


def redispatch(draft: Draft, lost: FrameState, reason: str) -> None:
    """Send a frame's command again, for the next attempt of the same rows."""
    assert lost.status is FrameStatus.ABANDONED, "only an abandoned frame is handed out again"
    holder = draft.state.commands[lost.command_id]
    issuing.reissue(draft, holder, reason)
    draft.emit(
        frame.FrameDispatched(
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


def _rows_to_run(taken: TakenItems | None) -> Source | None:
    """Return the rows that run where others are taken over, kept as a list of their own."""
    if taken is None or taken.frames is None:
        return None
    return Source(form=taken.frames.rows_form, total=taken.todo, ref=taken.frames.rows_ref)


def _is_shards(live: LoopState | None) -> bool:
    """Tell whether a loop's frames are shards that the planner knows one by one."""
    return (
        live is not None and live.mode == "fanout" and live.cut is not None and not live.cut.inside
    )


def _may_retry(draft: Draft, run: RunState, opened: FrameState, error: ErrorObject) -> bool:
    if not _is_shards(run.loop) or error.kind in KINDS_NOT_RETRIED:
        return False
    return opened.attempts < frame_policies.attempts_max(draft.state.stages[opened.stage_id])


def _retries(loop: Loop, names: Any, step: str) -> int:
    field = "loop.spec.fanout.max_shard_retries"
    how = loop.spec.fanout or FanoutOpts()
    rendered = evaluation.render(how.max_shard_retries, names, step=step, field=field)
    return evaluation.number(rendered, step=step, field=field, least=0, most=999)


def _with_error(fact: facts.FrameClosed, error: ErrorObject) -> facts.FrameClosed:
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


def _enqueued(draft: Draft, run: RunState, shard: int, count: int) -> None:
    stage_id = ids.stage_id(run.run_id)
    draft.emit(
        fanout.LoopShardEnqueued(
            step=run.step,
            run_id=run.run_id,
            stage_id=stage_id,
            frame_id=ids.frame_id(stage_id, slot=shard, frame_index=0),
            shard=shard,
            items=count,
        )
    )


def _tell_shard(
    draft: Draft, run: RunState, ended: FrameState, error: ErrorObject | None, *, key: str | None
) -> None:
    if not _is_shards(run.loop):
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
        draft.emit(fanout.LoopShardDone(**about))
    else:
        draft.emit(fanout.LoopShardFailed(error=error, **about))
