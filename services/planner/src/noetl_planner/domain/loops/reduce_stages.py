"""Reduce stages: groups of parts become the next level's parts, until one is left."""

from typing import Any

from noetl_contracts import codec, ids
from noetl_contracts.commands.loop_collections import CollectionCut
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import loop_events, step_events
from noetl_contracts.ids import RunId, StageId
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.requests import facts
from noetl_contracts.status import RunStatus, StageKind, StageStatus
from noetl_planner.domain.decision import evaluation, limits
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal, RunOutcome
from noetl_planner.domain.loops import frames, loop_collections, loop_ends
from noetl_planner.domain.steps import policies
from noetl_playbook.model.playbook import Reduce, ReduceSpec
from noetl_playbook.templates.scope import TemplateScope
from noetl_playbook.views import loop_parts
from noetl_replay.state import CommandState, LoopState, RunState

_CALLED_OFF = "another group of the level failed"
_COUNTED = ("total", "done", "succeeded", "success", "failed", "cancelled", "retried")


def start_reduce(draft: DecisionDraft, run: RunState) -> RunOutcome | None:
    """Take the parts of the sources and open the first level; raises `Refusal`."""
    reduce = _get_reduce(draft, run)
    if not reduce.from_:
        text = f"step {run.step!r}, field 'reduce.from': it names no step: name a loop step"
        raise Refusal.for_step("validation", run.step, text)
    parts_ref, count = _collect_source_parts(draft, run, reduce)
    names = evaluation.build_scope(draft)
    stage_id = ids.derive_stage_id(run.run_id)
    in_flight = _render_in_flight(draft, reduce, names, run.step)
    cut = CollectionCut(items=count, units=1)
    if reduce.spec.mode == "tree":
        cut = _cut_into_groups(
            count, _render_reduce_number(reduce.spec.fan_in, names, "fan_in", run.step, least=2)
        )
    policy = policies.render_frame_policy(
        reduce.spec.frame, names, step=run.step, within="reduce.spec.frame"
    )
    draft.append_event(
        loop_events.StageOpened(
            stage_id=stage_id,
            run_id=run.run_id,
            step=run.step,
            kind=StageKind.REDUCE,
            slots=in_flight,
            frame_policy=policy,
            parent_stage_id=_find_source_stage(draft, reduce) or loop_ends.find_parent_stage(draft),
        )
    )
    _open_level(draft, run, level=0, cut=cut, parts_ref=parts_ref, max_in_flight=in_flight)
    return continue_reduce(draft, run)


def continue_reduce(draft: DecisionDraft, run: RunState) -> RunOutcome | None:
    """Hand out groups; a level that is done makes the next one, and one that failed ends all."""
    loop_state, cut = frames.get_loop_and_cut(run)
    if loop_state.failed:
        loop_ends.cancel_units_in_flight(draft, run, _CALLED_OFF)
        _close_stage(draft, loop_state, StageStatus.FAILED)
        return RunOutcome(status=RunStatus.FAILED, error=loop_state.first_error)
    may_issue = draft.state.paused_at is None
    while (
        may_issue
        and loop_state.next_index < cut.units
        and loop_state.in_flight < loop_state.max_in_flight
    ):
        unit = loop_state.next_index
        first, end = loop_collections.get_unit_bounds(draft, cut, unit)
        frames.mint_frame(draft, run, unit, start=first, end=end, index=loop_state.level)
    if loop_state.in_flight or loop_state.next_index < cut.units:
        return None
    if cut.units == 1:
        _close_stage(draft, loop_state, StageStatus.COMPLETED)
        return RunOutcome(status=RunStatus.COMPLETED)
    draft.to_collect[run.run_id] = None
    return None


def close_group(
    draft: DecisionDraft, run: RunState, command_state: CommandState, fact: facts.FrameClosed
) -> bool:
    """Accept what became of a group; the last one's output is the step's."""
    if not frames.close_frame(draft, run, command_state, fact):
        return False
    _, cut = frames.get_loop_and_cut(run)
    if fact.error is not None:
        _append_call_error(draft, command_state, fact.error)
    elif cut.units == 1 and fact.result is not None:
        draft.append_event(
            step_events.CallDone(
                step=run.step,
                run_id=run.run_id,
                command_id=command_state.command_id,
                result=fact.result,
            )
        )
    return True


def fail_group(
    draft: DecisionDraft, run: RunState, command_state: CommandState, fact: facts.CommandFailed
) -> bool:
    """Accept that a group could not be run at all."""
    has_changed = frames.fail_frame(draft, run, command_state, fact)
    if has_changed:
        _append_call_error(draft, command_state, fact.error)
    return has_changed


def lose_group(
    draft: DecisionDraft,
    run: RunState,
    command_state: CommandState,
    reason: str,
    *,
    is_release: bool,
) -> bool:
    """Hand a lost group out again, or fail the step when its attempts are used up."""
    has_changed = frames.lose_frame(draft, run, command_state, reason, is_release=is_release)
    error = run.loop.first_error if run.loop is not None and run.loop.failed else None
    if has_changed and error is not None:
        _append_call_error(draft, command_state, error)
    return has_changed


def open_next_level(draft: DecisionDraft, fact: facts.PartsCollected) -> RunOutcome | None:
    """Open the next level over the outputs of the one that is done; anything else is old news."""
    run = next(
        (run_state for run_state in draft.state.runs.values() if run_state.run_id == fact.run_id),
        None,
    )
    if run is None or run.loop is None or run.loop.mode != "reduce":
        return None
    loop_state, cut = frames.get_loop_and_cut(run)
    if loop_state.level != fact.level or loop_state.in_flight or loop_state.next_index < cut.units:
        return None
    assert cut.size is not None, "only a tree has levels"
    _open_level(
        draft,
        run,
        level=loop_state.level + 1,
        cut=_cut_into_groups(fact.parts, cut.size),
        parts_ref=fact.parts_ref,
        max_in_flight=loop_state.max_in_flight,
    )
    return continue_reduce(draft, run)


def sum_source_fanins(draft: DecisionDraft, run: RunState) -> dict[str, Any]:
    """Show the outcome of the sources to a reduce body; several are added up."""
    source_fanins = [
        counters
        for name in _get_reduce(draft, run).from_
        if (counters := evaluation.find_fanin_counters(draft, name)) is not None
    ]
    if len(source_fanins) == 1:
        return {key: item for key, item in source_fanins[0].items() if key != loop_parts.PARTS}
    summed: dict[str, Any] = {
        key: sum(source_fanin[key] for source_fanin in source_fanins) for key in _COUNTED
    }
    statuses = {source_fanin["status"] for source_fanin in source_fanins}
    status = statuses.pop() if len(statuses) == 1 else "partial"
    ratio = summed["done"] / summed["total"] if summed["total"] else 1
    return {**summed, "status": status, "ratio": ratio}


def _collect_source_parts(
    draft: DecisionDraft, run: RunState, reduce: Reduce
) -> tuple[PayloadRef, int]:
    """Return the payload of all parts in order; raises `Refusal` or `PayloadNeeded`."""
    listed: list[list[dict[str, Any]]] = []
    for name in reduce.from_:
        counters = evaluation.find_fanin_counters(draft, name)
        if counters is None:
            raise _incomplete_refusal(run.step, name, "it has not run, or has no outcome")
        if counters["status"] != "complete" and not reduce.spec.accept_partial:
            text = f"{counters['failed']} of {counters['total']} units failed"
            raise _incomplete_refusal(run.step, name, f"its fan-in is {counters['status']}, {text}")
        reference = loop_parts.find_parts_reference(counters)
        if reference is not None and len(reduce.from_) == 1 and counters["status"] == "complete":
            return reference, reference.row_count or 0
        listed.append(
            codec.to_builtins(loop_parts.list_inline_parts(counters))
            if reference is None
            else _read_parts(draft, reference, run.step)
        )
    joined = _join_parts(listed)
    return draft.store_bytes(codec.encode_json(joined), row_count=len(joined)), len(joined)


def _read_parts(draft: DecisionDraft, reference: PayloadRef, step: str) -> list[dict[str, Any]]:
    with evaluation.bounded_reads(draft, step=step, field="reduce.from"):
        draft.reads.admit_fact_read(reference)
        stored_value: list[dict[str, Any]] = draft.get_stored_value(reference)
        return stored_value


def _find_source_stage(draft: DecisionDraft, reduce: Reduce) -> StageId | None:
    """Return the stage whose outputs are reduced; the first source's, when it has one."""
    counters = evaluation.find_fanin_counters(draft, reduce.from_[0]) or {}
    loop = draft.program.steps[reduce.from_[0]].loop
    if loop is None or loop.spec.frame is None or "loop_id" not in counters:
        return None
    return ids.derive_stage_id(RunId(counters["loop_id"]))


def _join_parts(listed: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Put parts behind each other, numbered through; those that failed are left out."""
    joined: list[dict[str, Any]] = []
    offset = 0
    for parts in listed:
        joined += [
            {**part, "index": offset + part["index"]}
            for part in parts
            if part.get("status", "ok") == "ok"
        ]
        offset += len(parts)
    return joined


def _cut_into_groups(count: int, fan_in: int) -> CollectionCut:
    return CollectionCut(items=count, units=max(1, -(-count // fan_in)), size=fan_in)


def _open_level(
    draft: DecisionDraft,
    run: RunState,
    *,
    level: int,
    cut: CollectionCut,
    parts_ref: PayloadRef,
    max_in_flight: int,
) -> None:
    draft.append_event(
        loop_events.ReduceLevelOpened(
            step=run.step,
            run_id=run.run_id,
            stage_id=ids.derive_stage_id(run.run_id),
            level=level,
            max_in_flight=max_in_flight,
            cut=cut,
            parts_ref=parts_ref,
        )
    )


def _close_stage(draft: DecisionDraft, loop_state: LoopState, status: StageStatus) -> None:
    assert loop_state.stage_id is not None, "a reduce has a stage"
    loop_ends.close_stage(draft, draft.state.stages[loop_state.stage_id], status)


def _append_call_error(
    draft: DecisionDraft, command_state: CommandState, error: ErrorObject
) -> None:
    draft.append_event(
        step_events.CallError(
            step=command_state.step,
            run_id=command_state.run_id,
            command_id=command_state.command_id,
            error=error,
        )
    )


def _render_in_flight(
    draft: DecisionDraft, reduce: Reduce, names: TemplateScope, step_name: str
) -> int:
    field, written = "reduce.spec.max_in_flight", reduce.spec.max_in_flight
    rendered = evaluation.render_value(written, names, step=step_name, field=field)
    is_default = written == ReduceSpec().max_in_flight
    return limits.check_in_flight(
        draft, rendered, is_default=is_default, step=step_name, field=field
    )


def _render_reduce_number(
    value: Any, names: TemplateScope, key: str, step_name: str, *, least: int = 1
) -> int:
    field = f"reduce.spec.{key}"
    rendered = evaluation.render_value(value, names, step=step_name, field=field)
    return evaluation.check_bounded_number(
        rendered, step=step_name, field=field, least=least, most=10_000
    )


def _incomplete_refusal(step_name: str, source: str, why: str) -> Refusal:
    return Refusal.for_step(
        "fanin_incomplete",
        step_name,
        f"step {step_name!r} cannot reduce step {source!r}: {why}; "
        "set reduce.spec.accept_partial to leave failed parts out",
    )


def _get_reduce(draft: DecisionDraft, run: RunState) -> Reduce:
    reduce = draft.program.steps[run.step].reduce
    assert reduce is not None, "only reduce steps come here"
    return reduce
