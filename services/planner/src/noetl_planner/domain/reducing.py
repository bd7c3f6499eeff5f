"""Reduce stages: groups of parts become the next level's parts, until one is left."""

from typing import Any

from noetl_contracts import codec, facts, ids
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import reduce as events
from noetl_contracts.events import stage as stage_events
from noetl_contracts.events import step
from noetl_contracts.ids import RunId, StageId
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.slicing import Cut
from noetl_contracts.status import RunStatus, StageKind, StageStatus
from noetl_planner.domain import cutting, ending, evaluation, frame_policies, limits, units
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Outcome, Refusal
from noetl_playbook import parts
from noetl_playbook.model import Reduce, ReduceSpec
from noetl_playbook.scope import Scope
from noetl_replay.state import CommandState, LoopState, RunState

_CALLED_OFF = "another group of the level failed"
_COUNTED = ("total", "done", "succeeded", "success", "failed", "cancelled", "retried")


def start(draft: Draft, run: RunState) -> Outcome | None:
    """Take the parts of the sources and open the first level; raises `Refusal`."""
    reduce = _reduce_of(draft, run)
    if not reduce.from_:
        text = f"step {run.step!r}, field 'reduce.from': it names no step: name a loop step"
        raise Refusal.of("validation", run.step, text)
    parts_ref, count = _gathered(draft, run, reduce)
    names = evaluation.scope(draft)
    stage_id = ids.stage_id(run.run_id)
    in_flight = _in_flight(draft, reduce, names, run.step)
    cut = Cut(items=count, units=1)
    if reduce.spec.mode == "tree":
        cut = _grouped(count, _number(reduce.spec.fan_in, names, "fan_in", run.step, least=2))
    policy = frame_policies.rendered(
        reduce.spec.frame, names, step=run.step, within="reduce.spec.frame"
    )
    draft.emit(
        stage_events.StageOpened(
            stage_id=stage_id,
            run_id=run.run_id,
            step=run.step,
            kind=StageKind.REDUCE,
            slots=in_flight,
            frame_policy=policy,
            parent_stage_id=_source_stage(draft, reduce) or ending.parent_stage(draft),
        )
    )
    _open(draft, run, level=0, cut=cut, parts_ref=parts_ref, max_in_flight=in_flight)
    return go_on(draft, run)


def go_on(draft: Draft, run: RunState) -> Outcome | None:
    """Hand out groups; a level that is done makes the next one, and one that failed ends all."""
    live, cut = units.parts(run)
    if live.failed:
        ending.call_off(draft, run, _CALLED_OFF)
        _close(draft, live, StageStatus.FAILED)
        return Outcome(status=RunStatus.FAILED, error=live.first_error)
    may_issue = draft.state.paused_at is None
    while may_issue and live.next_index < cut.units and live.in_flight < live.max_in_flight:
        unit = live.next_index
        first, end = cutting.bounds(draft, cut, unit)
        units.mint(draft, run, unit, start=first, end=end, index=live.level)
    if live.in_flight or live.next_index < cut.units:
        return None
    if cut.units == 1:
        _close(draft, live, StageStatus.COMPLETED)
        return Outcome(status=RunStatus.COMPLETED)
    draft.to_collect[run.run_id] = None
    return None


def close(draft: Draft, run: RunState, live: CommandState, fact: facts.FrameClosed) -> bool:
    """Accept what became of a group; the last one's output is the step's."""
    if not units.close(draft, run, live, fact):
        return False
    _, cut = units.parts(run)
    if fact.error is not None:
        _tell_error(draft, live, fact.error)
    elif cut.units == 1 and fact.result is not None:
        draft.emit(
            step.CallDone(
                step=run.step, run_id=run.run_id, command_id=live.command_id, result=fact.result
            )
        )
    return True


def fail(draft: Draft, run: RunState, live: CommandState, fact: facts.CommandFailed) -> bool:
    """Accept that a group could not be run at all."""
    has_changed = units.fail(draft, run, live, fact)
    if has_changed:
        _tell_error(draft, live, fact.error)
    return has_changed


def lose(draft: Draft, run: RunState, live: CommandState, reason: str, *, is_release: bool) -> bool:
    """Hand a lost group out again, or fail the step when its attempts are used up."""
    has_changed = units.lose(draft, run, live, reason, is_release=is_release)
    error = run.loop.first_error if run.loop is not None and run.loop.failed else None
    if has_changed and error is not None:
        _tell_error(draft, live, error)
    return has_changed


def collected(draft: Draft, fact: facts.PartsCollected) -> Outcome | None:
    """Open the next level over the outputs of the one that is done; anything else is old news."""
    run = next((one for one in draft.state.runs.values() if one.run_id == fact.run_id), None)
    if run is None or run.loop is None or run.loop.mode != "reduce":
        return None
    live, cut = units.parts(run)
    if live.level != fact.level or live.in_flight or live.next_index < cut.units:
        return None
    assert cut.size is not None, "only a tree has levels"
    _open(
        draft,
        run,
        level=live.level + 1,
        cut=_grouped(fact.parts, cut.size),
        parts_ref=fact.parts_ref,
        max_in_flight=live.max_in_flight,
    )
    return go_on(draft, run)


def fanin_of(draft: Draft, run: RunState) -> dict[str, Any]:
    """Show the outcome of the sources to a reduce body; several are added up."""
    found = [
        counters
        for name in _reduce_of(draft, run).from_
        if (counters := evaluation.fanin_counters(draft, name)) is not None
    ]
    if len(found) == 1:
        return {key: item for key, item in found[0].items() if key != parts.PARTS}
    summed: dict[str, Any] = {key: sum(one[key] for one in found) for key in _COUNTED}
    statuses = {one["status"] for one in found}
    status = statuses.pop() if len(statuses) == 1 else "partial"
    ratio = summed["done"] / summed["total"] if summed["total"] else 1
    return {**summed, "status": status, "ratio": ratio}


def _gathered(draft: Draft, run: RunState, reduce: Reduce) -> tuple[PayloadRef, int]:
    """Return the payload of all parts in order; raises `Refusal` or `PayloadNeeded`."""
    listed: list[list[dict[str, Any]]] = []
    for name in reduce.from_:
        counters = evaluation.fanin_counters(draft, name)
        if counters is None:
            raise _incomplete(run.step, name, "it has not run, or has no outcome")
        if counters["status"] != "complete" and not reduce.spec.accept_partial:
            text = f"{counters['failed']} of {counters['total']} units failed"
            raise _incomplete(run.step, name, f"its fan-in is {counters['status']}, {text}")
        reference = parts.reference_of(counters)
        if reference is not None and len(reduce.from_) == 1 and counters["status"] == "complete":
            return reference, reference.row_count or 0
        listed.append(
            codec.builtins(parts.inline_of(counters))
            if reference is None
            else _listed(draft, reference, run.step)
        )
    joined = _joined(listed)
    return draft.keep_bytes(codec.encode(joined), row_count=len(joined)), len(joined)


def _listed(draft: Draft, reference: PayloadRef, step: str) -> list[dict[str, Any]]:
    with evaluation.bounded(draft, step=step, field="reduce.from"):
        draft.reads.admit_together(reference)
        found: list[dict[str, Any]] = draft.value_of(reference)
        return found


def _source_stage(draft: Draft, reduce: Reduce) -> StageId | None:
    """Return the stage whose outputs are reduced; the first source's, when it has one."""
    counters = evaluation.fanin_counters(draft, reduce.from_[0]) or {}
    loop = draft.program.steps[reduce.from_[0]].loop
    if loop is None or loop.spec.frame is None or "loop_id" not in counters:
        return None
    return ids.stage_id(RunId(counters["loop_id"]))


def _joined(listed: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Put parts behind each other, numbered through; those that failed are left out."""
    joined: list[dict[str, Any]] = []
    offset = 0
    for found in listed:
        joined += [
            {**part, "index": offset + part["index"]}
            for part in found
            if part.get("status", "ok") == "ok"
        ]
        offset += len(found)
    return joined


def _grouped(count: int, fan_in: int) -> Cut:
    return Cut(items=count, units=max(1, -(-count // fan_in)), size=fan_in)


def _open(
    draft: Draft, run: RunState, *, level: int, cut: Cut, parts_ref: PayloadRef, max_in_flight: int
) -> None:
    draft.emit(
        events.ReduceLevelOpened(
            step=run.step,
            run_id=run.run_id,
            stage_id=ids.stage_id(run.run_id),
            level=level,
            max_in_flight=max_in_flight,
            cut=cut,
            parts_ref=parts_ref,
        )
    )


def _close(draft: Draft, live: LoopState, status: StageStatus) -> None:
    assert live.stage_id is not None, "a reduce has a stage"
    ending.close_stage(draft, draft.state.stages[live.stage_id], status)


def _tell_error(draft: Draft, live: CommandState, error: ErrorObject) -> None:
    draft.emit(
        step.CallError(step=live.step, run_id=live.run_id, command_id=live.command_id, error=error)
    )


def _in_flight(draft: Draft, reduce: Reduce, names: Scope, step_name: str) -> int:
    field, written = "reduce.spec.max_in_flight", reduce.spec.max_in_flight
    rendered = evaluation.render(written, names, step=step_name, field=field)
    is_default = written == ReduceSpec().max_in_flight
    return limits.in_flight(draft, rendered, is_default=is_default, step=step_name, field=field)


def _number(value: Any, names: Scope, key: str, step_name: str, *, least: int = 1) -> int:
    field = f"reduce.spec.{key}"
    rendered = evaluation.render(value, names, step=step_name, field=field)
    return evaluation.number(rendered, step=step_name, field=field, least=least, most=10_000)


def _incomplete(step_name: str, source: str, why: str) -> Refusal:
    return Refusal.of(
        "fanin_incomplete",
        step_name,
        f"step {step_name!r} cannot reduce step {source!r}: {why}; "
        "set reduce.spec.accept_partial to leave failed parts out",
    )


def _reduce_of(draft: Draft, run: RunState) -> Reduce:
    reduce = draft.program.steps[run.step].reduce
    assert reduce is not None, "only reduce steps come here"
    return reduce
