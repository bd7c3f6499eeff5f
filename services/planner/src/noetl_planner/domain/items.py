"""Loops over a collection: items issued in order, counted as they end, collected at the end."""

from collections.abc import Mapping
from typing import Any

from noetl_contracts import codec, facts
from noetl_contracts.events import loop as events
from noetl_contracts.payloads import EVENT_INLINE_BYTES_MAX, ResultEnvelope
from noetl_contracts.status import RunStatus
from noetl_planner.domain import evaluation, failure_policy, issuing, limits
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Outcome, Refusal
from noetl_playbook.model import Loop, Step
from noetl_playbook.scope import Scope
from noetl_replay.state import LoopState, RunState

INLINE_BYTES_MAX = EVENT_INLINE_BYTES_MAX // 2
MODES = ("sequential", "parallel")


def start(draft: Draft, run: RunState) -> Outcome | None:
    """Fix the collection and issue the first items."""
    definition = draft.program.steps[run.step]
    loop = _loop_of(definition)
    if loop.spec.mode not in MODES:
        raise Refusal.of(
            "unsupported_tool",
            run.step,
            f"loop mode {loop.spec.mode!r} is not available in this release: "
            f"use {', '.join(MODES)} or cursor",
        )
    names = evaluation.scope(draft)
    found = evaluation.render(loop.in_, names, step=run.step, field="loop.in")
    collection = as_list(found, run.step, draft.limits.items_max)
    is_inline = len(codec.canonical(collection)) <= INLINE_BYTES_MAX
    draft.emit(
        events.LoopStarted(
            step=run.step,
            run_id=run.run_id,
            mode=loop.spec.mode,
            max_in_flight=_in_flight(draft, loop, names, run.step),
            total=len(collection),
            collection=collection if is_inline else None,
            collection_ref=None if is_inline else draft.keep(collection),
        )
    )
    return go_on(draft, run)


def go_on(draft: Draft, run: RunState) -> Outcome | None:
    """Issue what may be issued; return the outcome of a loop that has ended without results."""
    loop = _live(run)
    definition = draft.program.steps[run.step]
    attempts_max = _loop_of(definition).spec.max_attempts
    stopping = failure_policy.stops_early(definition, loop)
    may_issue = not stopping and draft.state.paused_at is None
    while may_issue and loop.next_index < loop.total and loop.in_flight < loop.max_in_flight:
        issuing.issue_item(draft, run, loop.next_index, attempts_max=attempts_max)
    if loop.in_flight == 0 and (stopping or loop.next_index >= loop.total):
        if loop.total == 0:
            stats = codec.builtins(stats_of(loop))
            return _end(draft, run, evaluation.loop_result([], stats))
        draft.to_collect[run.run_id] = None
    return None


def collected(draft: Draft, run: RunState, fact: facts.ItemsCollected) -> Outcome:
    """End a loop whose results have been gathered."""
    return _end(draft, run, fact.result)


def stats_of(loop: LoopState) -> events.LoopStats:
    """Count a loop's units as templates see them."""
    return events.LoopStats(
        total=loop.total,
        success=loop.success,
        failed=loop.failed,
        cancelled=loop.total - loop.success - loop.failed,
        retried=loop.retried,
    )


def as_list(found: Any, step: str, items_max: int) -> list[Any]:
    """Read a rendered `in` as a list (language, 7.1); raises `Refusal` for anything else."""
    match found:
        case None:
            items: list[Any] = []
        case bool():
            raise _not_a_collection(found, step)
        case int():
            items = list(range(min(found, items_max + 1)))
        case str():
            items = _from_text(found, step)
        case Mapping():
            items = _from_mapping(found)
        case list() | tuple():
            items = list(found)
        case _:
            raise _not_a_collection(found, step)
    if len(items) > items_max:
        raise Refusal.over(
            limits.MAX_ITEMS,
            step,
            f"loop.in holds more than {items_max} items: store the list and loop"
            " over its reference",
        )
    return items


def _from_mapping(found: Mapping[str, Any]) -> list[Any]:
    for key in ("rows", "results"):
        if isinstance(found.get(key), list):
            return list(found[key])
    return [{"key": key, "value": value} for key, value in found.items()]


def _from_text(found: str, step: str) -> list[Any]:
    try:
        items = codec.decode(found)
    except ValueError as error:
        raise _not_a_collection(found, step) from error
    if not isinstance(items, list):
        raise _not_a_collection(found, step)
    return items


def _not_a_collection(found: Any, step: str) -> Refusal:
    return Refusal.of(
        "loop_source",
        step,
        f"step {step!r}, field 'loop.in': {type(found).__name__} is not a collection: "
        "give a list, a mapping, rows or a whole number",
    )


def _in_flight(draft: Draft, loop: Loop, names: Scope, step: str) -> int:
    if loop.spec.mode == "sequential":
        return 1
    field = "loop.spec.max_in_flight"
    rendered = evaluation.render(loop.spec.max_in_flight, names, step=step, field=field)
    return evaluation.number(
        rendered,
        step=step,
        field=field,
        least=1,
        most=draft.limits.in_flight_max,
        limit=limits.MAX_IN_FLIGHT,
    )


def _end(draft: Draft, run: RunState, result: ResultEnvelope) -> Outcome:
    loop = _live(run)
    stats = stats_of(loop)
    error = failure_policy.verdict(draft.program.steps[run.step], loop, stats)
    if error is None:
        draft.emit(events.LoopDone(step=run.step, run_id=run.run_id, stats=stats, result=result))
        return Outcome(status=RunStatus.COMPLETED)
    draft.emit(
        events.LoopFailed(step=run.step, run_id=run.run_id, stats=stats, result=result, error=error)
    )
    return Outcome(status=RunStatus.FAILED, error=error)


def _live(run: RunState) -> LoopState:
    assert run.loop is not None, "only loop runs come here"
    return run.loop


def _loop_of(step: Step) -> Loop:
    assert step.loop is not None, "only loop steps come here"
    return step.loop
