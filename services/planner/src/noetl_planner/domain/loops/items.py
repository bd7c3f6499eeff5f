"""Loops over items: starts and continues them, and builds the policies of `exec: local` loops.

An `exec: local` loop is one command for one worker, and one frame over all items in the ledger.
The worker cuts the frame into units by the planner's rules, and reports how many units completed
and failed.
"""

from typing import Any

from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import CollectionCut, InnerCut
from noetl_contracts.events import loop_events
from noetl_planner.domain.decision import evaluation, limits
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import RunOutcome
from noetl_planner.domain.loops import batches, loop_collections, loop_ends, reruns
from noetl_planner.domain.steps import policies
from noetl_playbook.model.playbook import Frame, Loop, Step
from noetl_playbook.sections import loops
from noetl_playbook.templates.scope import TemplateScope
from noetl_replay.state import RunState

_UNBOUNDED_FRAME_S = 366 * 86_400


def build_items_policy(
    step: Step, policy: dict[str, Any], total: int, in_flight: int
) -> dict[str, Any]:
    """Build the frame policy of an `exec: local` loop that runs `in_flight` items at once."""
    items_policy = {
        **policy,
        "max_rows": max(1, total),
        "max_seconds": _UNBOUNDED_FRAME_S,
        "row_concurrency": in_flight,
        "max_attempts": _loop_attempts_max(step),
    }
    return _add_failure_bound(items_policy, step, total)


def build_units_policy(
    step: Step, policy: dict[str, Any], cut: CollectionCut, *, in_flight: int, attempts_max: int
) -> tuple[dict[str, Any], CollectionCut]:
    """Build the frame policy and the cut of an `exec: local` loop over chunks or shards."""
    assert step.loop is not None, "only loop steps come here"
    is_shard = step.loop.spec.mode == "fanout"
    inside = InnerCut(
        in_flight=in_flight,
        size=cut.size,
        units=cut.units,
        attempts_max=attempts_max if is_shard else 1,
        is_shard=is_shard,
    )
    units_policy = {
        **policy,
        "max_attempts": _loop_attempts_max(step),
        "inside": codec.to_builtins(inside),
    }
    counts_units = is_shard or policy.get("process") == "frame"
    bounded = _add_failure_bound(units_policy, step, cut.units if counts_units else cut.items)
    return bounded, structs.replace(cut, units=min(1, cut.units), inside=cut.units)


def build_claims_policy(policy: dict[str, Any], in_flight: int) -> dict[str, Any]:
    """Build the frame policy of an `exec: local` cursor, which claims for many frames at once."""
    size = int(policy.get("max_rows", Frame().max_rows))
    inside = InnerCut(in_flight=in_flight, size=size)
    return {**policy, "max_rows": size * in_flight, "inside": codec.to_builtins(inside)}


def is_local_loop(step: Step) -> bool:
    """Return whether a step's loop is `exec: local`: one worker runs it whole."""
    return step.loop is not None and step.loop.spec.policy.exec == "local"


def _loop_attempts_max(step: Step) -> int:
    assert step.loop is not None, "only loop steps come here"
    return step.loop.spec.max_attempts


def _add_failure_bound(policy: dict[str, Any], step: Step, total: int) -> dict[str, Any]:
    bound = policies.find_failed_max(step, total)
    return policy if bound is None else {**policy, "failed_max": bound}


def start_item_loop(draft: DecisionDraft, run: RunState) -> RunOutcome | None:
    """Resolve the collection of a loop over items, and issue its first items."""
    loop = get_step_loop(draft.program.steps[run.step])
    names = evaluation.build_scope(draft)
    taken_items = reruns.find_taken_items(draft.state, run)
    if taken_items is not None:
        draft.append_event(
            loop_events.LoopStarted(
                step=run.step,
                run_id=run.run_id,
                mode=loop.spec.mode,
                max_in_flight=render_in_flight(draft, loop, names, run.step),
                total=taken_items.total,
                collection_ref=taken_items.collection_ref,
                collection_form=taken_items.collection_form,
                taken=taken_items,
                may_batch=batches.may_batch_items(draft.program.steps[run.step], loop),
            )
        )
        return continue_item_loop(draft, run)
    source = loop_collections.render_collection(draft, loop, names, step=run.step)
    draft.append_event(
        loop_events.LoopStarted(
            step=run.step,
            run_id=run.run_id,
            mode=loop.spec.mode,
            max_in_flight=render_in_flight(draft, loop, names, run.step),
            total=source.total,
            notes=source.notes,
            may_batch=batches.may_batch_items(draft.program.steps[run.step], loop),
            **loop_collections.store_collection(draft, source, may_inline=True),
        )
    )
    return continue_item_loop(draft, run)


def continue_item_loop(draft: DecisionDraft, run: RunState) -> RunOutcome | None:
    """Issue further items within limits; return the outcome if the loop ended without results."""
    loop = loop_ends.get_loop(run)
    definition = draft.program.steps[run.step]
    spec = get_step_loop(definition).spec
    stopping = policies.has_exceeded_failures(definition, loop)
    if stopping and loop.in_flight:
        loop_ends.cancel_units_in_flight(draft, run, policies.FAILED_FAST)
    if not stopping and draft.state.paused_at is None:
        batches.issue_items(draft, run, loop, attempts_max=spec.max_attempts)
    if loop.in_flight == 0 and (stopping or not batches.has_items_left(draft, run, loop)):
        return finish_loop(draft, run, collects=spec.collect == "all" and loop.total > 0)
    return None


def finish_loop(draft: DecisionDraft, run: RunState, *, collects: bool) -> RunOutcome | None:
    """Start the collection of a loop's results; return its outcome when it collects none."""
    if collects:
        draft.to_collect[run.run_id] = None
        return None
    loop = loop_ends.get_loop(run)
    stage = draft.state.stages.get(loop.stage_id) if loop.stage_id is not None else None
    taken_items = reruns.find_taken_items(draft.state, run)
    stats = codec.to_builtins(loop_ends.count_loop_stats(loop, stage, taken_items))
    return loop_ends.end_loop(
        draft, run, evaluation.make_loop_result([], stats, loop_ends.build_fanin_counters(loop))
    )


def render_in_flight(draft: DecisionDraft, loop: Loop, names: TemplateScope, step: str) -> int:
    """Render how many units may run at once; raises `Refusal`."""
    if loop.spec.mode == "sequential":
        return 1
    field = "loop.spec.max_in_flight"
    rendered = evaluation.render_value(loop.spec.max_in_flight, names, step=step, field=field)
    is_default = loops.is_default_in_flight(loop.spec)
    return limits.check_in_flight(draft, rendered, is_default=is_default, step=step, field=field)


def get_step_loop(step: Step) -> Loop:
    """Return the loop of a step that has one."""
    assert step.loop is not None, "only loop steps come here"
    return step.loop
