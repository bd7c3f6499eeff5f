"""Where tokens go when an activation ends."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events.business import BusinessObjectChanged
from noetl_contracts.status import RunStatus
from noetl_planner.domain import (
    boundary,
    ending,
    evaluation,
    growth,
    objects,
    patches,
    streaming,
)
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Refusal
from noetl_playbook import aliases
from noetl_playbook.model import Arc, StepPolicy
from noetl_playbook.plan import is_failure_aware
from noetl_playbook.scope import Scope
from noetl_replay.state import RunState


class Route(Struct, frozen=True, kw_only=True):
    """The outcome of routing: targets, writes to `ctx`, and whether a failure was handled."""

    targets: list[str] = msgspec.field(default_factory=list)
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
    is_handled: bool = True
    error: ErrorObject | None = None
    notes: list[str] = msgspec.field(default_factory=list)
    objects: list[BusinessObjectChanged] = msgspec.field(default_factory=list)


def route(draft: Draft, run: RunState, status: RunStatus, error: ErrorObject | None) -> Route:
    """Apply step `set`, then the arcs; raises `Refusal` for a bad template or too much `ctx`."""
    bound = _bound(draft, run, status, error)
    chosen = _route(draft, run, status, error, bound)
    if status is not RunStatus.COMPLETED or not _policy(draft, run).emit.objects:
        return chosen
    names = evaluation.scope(draft, chosen.patch, **bound)
    return msgspec.structs.replace(chosen, objects=objects.render(draft, run, names))


def _policy(draft: Draft, run: RunState) -> StepPolicy:
    return draft.program.steps[run.step].spec.policy


def _route(
    draft: Draft,
    run: RunState,
    status: RunStatus,
    error: ErrorObject | None,
    bound: dict[str, Any],
) -> Route:
    definition = draft.program.steps[run.step]
    patch: dict[str, Any] = {}
    if status is RunStatus.COMPLETED and definition.set:
        names = evaluation.scope(draft, **bound)
        patch = patches.render_set(draft, definition.set, names, draft.state.ctx, step=run.step)
    notes: list[str] = []
    chosen = _choose(draft, run, evaluation.scope(draft, patch, **bound), status, notes)
    for arc in chosen:
        if arc.set:
            # A block sees what the blocks before it have written.
            names = evaluation.scope(draft, patch, **bound)
            ctx = {**draft.state.ctx, **patch}
            patch.update(patches.render_set(draft, arc.set, names, ctx, step=run.step))
    patch, refused = growth.carried(draft, patch, step=run.step)
    if refused is not None:
        raise Refusal(refused)
    targets = list(dict.fromkeys(arc.step for arc in chosen))
    if status is RunStatus.FAILED:
        return Route(
            targets=targets, patch=patch, is_handled=bool(chosen), error=error, notes=notes
        )
    if chosen:
        return Route(targets=targets, patch=patch, notes=notes)
    return _without_match(draft, run, patch, notes)


def _without_match(draft: Draft, run: RunState, patch: dict[str, Any], notes: list[str]) -> Route:
    program = draft.program
    if program.has_implicit_arc(run.step) and program.final is not None:
        has_ended = _has_completed(draft, program.final)
        return Route(targets=[] if has_ended else [program.final], patch=patch)
    following = program.steps[run.step].next
    mode = following.spec.on_no_match if following is not None else "complete"
    if program.playbook.executor.spec.no_next_is_error and run.step != program.final:
        mode = "fail"
    if mode == "fail":
        error = ErrorObject(
            kind="no_route",
            code="NO_ROUTE",
            step=run.step,
            message=f"step {run.step!r} ended well and no arc of it matches",
        )
        return Route(patch=patch, is_handled=False, error=error, notes=notes)
    others = any(arc.on != aliases.PARTIAL for arc in program.arcs(run.step))
    unrouted = ["no_route"] if mode == "complete" and others else []
    return Route(patch=patch, notes=[*notes, *unrouted])


def _has_completed(draft: Draft, name: str) -> bool:
    remembered = draft.state.steps.get(name)
    return remembered is not None and remembered.status is RunStatus.COMPLETED


def _choose(
    draft: Draft, run: RunState, names: Scope, status: RunStatus, notes: list[str]
) -> list[Arc]:
    """Choose the arcs to follow, and note once that a condition was undefined."""
    following = draft.program.steps[run.step].next
    if following is None:
        return []
    chosen: list[Arc] = []
    for index, arc in enumerate(following.arcs):
        if status is RunStatus.FAILED and not is_failure_aware(arc, step=run.step):
            continue
        matches, is_undefined = _matches(arc, names, run.step, index)
        if is_undefined and evaluation.UNDEFINED_IN_CONDITION not in notes:
            notes.append(evaluation.UNDEFINED_IN_CONDITION)
        if matches:
            chosen.append(arc)
            if following.spec.mode == "exclusive":
                break
    return chosen


def _matches(arc: Arc, names: Scope, step: str, index: int) -> tuple[bool, bool]:
    """Tell whether an arc matches, and whether its condition as a whole was undefined."""
    if arc.on is not None and names["event"]["name"] != arc.on:
        return False, False
    if arc.when is None:
        return True, False
    holds, undefined = evaluation.judge(
        arc.when, names, step=step, field=f"next.arcs[{index}].when"
    )
    return holds, undefined is not None


def _bound(
    draft: Draft, run: RunState, status: RunStatus, error: ErrorObject | None
) -> dict[str, Any]:
    step = draft.state.steps[run.step]
    event = boundary.event(draft, step, status=status, error=error)
    output = evaluation.output(draft, step, error)
    bound: dict[str, Any] = {"event": event, "output": output}
    if streaming.streams(draft, run.step):
        event["chunks"] = streaming.counts(run)
    if run.loop is not None and draft.program.steps[run.step].loop is not None:
        counters = evaluation.fanin_counters(draft, run.step)
        if counters is None or counters.get("loop_id") != run.run_id:
            # An epoch that was called off has no result of its own.
            counters = ending.counters(run.loop)
        bound["fanin"] = evaluation.fanin(draft, counters)
        event["stats"] = codec.builtins(run.loop.stats)
    return bound
