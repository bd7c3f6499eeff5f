"""Where tokens go when an activation ends."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events.execution_events import BusinessObjectChanged
from noetl_contracts.status import RunStatus
from noetl_planner.domain.decision import ctx_writes, evaluation
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal
from noetl_planner.domain.loops import loop_ends, streams
from noetl_planner.domain.steps import step_end_events
from noetl_playbook.model import language_names
from noetl_playbook.model.playbook import Arc, StepPolicy
from noetl_playbook.plan import is_failure_aware
from noetl_playbook.templates.scope import TemplateScope
from noetl_replay.state import RunState


class Route(Struct, frozen=True, kw_only=True):
    """The outcome of routing: targets, writes to `ctx`, and whether a failure was handled."""

    targets: list[str] = msgspec.field(default_factory=list)
    patch: dict[str, Any] = msgspec.field(default_factory=dict)
    is_handled: bool = True
    error: ErrorObject | None = None
    notes: list[str] = msgspec.field(default_factory=list)
    objects: list[BusinessObjectChanged] = msgspec.field(default_factory=list)


def route_run(
    draft: DecisionDraft, run: RunState, status: RunStatus, error: ErrorObject | None
) -> Route:
    """Apply step `set`, then the arcs; raises `Refusal` for a bad template or too much `ctx`."""
    bound = _bind_end_names(draft, run, status, error)
    chosen = _follow_arcs(draft, run, status, error, bound)
    if status is not RunStatus.COMPLETED or not _step_policy(draft, run).emit.objects:
        return chosen
    names = evaluation.build_scope(draft, chosen.patch, **bound)
    return msgspec.structs.replace(
        chosen, objects=step_end_events.render_business_objects(draft, run, names)
    )


def _step_policy(draft: DecisionDraft, run: RunState) -> StepPolicy:
    return draft.program.steps[run.step].spec.policy


def _follow_arcs(
    draft: DecisionDraft,
    run: RunState,
    status: RunStatus,
    error: ErrorObject | None,
    bound: dict[str, Any],
) -> Route:
    definition = draft.program.steps[run.step]
    patch: dict[str, Any] = {}
    if status is RunStatus.COMPLETED and definition.set:
        names = evaluation.build_scope(draft, **bound)
        patch = ctx_writes.render_set_block(
            draft, definition.set, names, draft.state.ctx, step=run.step
        )
    notes: list[str] = []
    chosen = _choose_arcs(draft, run, evaluation.build_scope(draft, patch, **bound), status, notes)
    for arc in chosen:
        if arc.set:
            # A block sees what the blocks before it have written.
            names = evaluation.build_scope(draft, patch, **bound)
            ctx = {**draft.state.ctx, **patch}
            patch.update(ctx_writes.render_set_block(draft, arc.set, names, ctx, step=run.step))
    patch, refused = ctx_writes.store_ctx_patch(draft, patch, step=run.step)
    if refused is not None:
        raise Refusal(refused)
    targets = list(dict.fromkeys(arc.step for arc in chosen))
    if status is RunStatus.FAILED:
        return Route(
            targets=targets, patch=patch, is_handled=bool(chosen), error=error, notes=notes
        )
    if chosen:
        return Route(targets=targets, patch=patch, notes=notes)
    return _route_without_match(draft, run, patch, notes)


def _route_without_match(
    draft: DecisionDraft, run: RunState, patch: dict[str, Any], notes: list[str]
) -> Route:
    program = draft.program
    if program.has_implicit_arc(run.step) and program.final is not None:
        has_ended = _has_completed(draft, program.final)
        return Route(targets=[] if has_ended else [program.final], patch=patch)
    following = program.steps[run.step].next
    mode = following.spec.on_no_match if following is not None else "complete"
    setting = "on_no_match: fail"
    if program.playbook.executor.spec.no_next_is_error and run.step != program.final:
        mode, setting = "fail", "no_next_is_error: true"
    if mode == "fail":
        error = ErrorObject(
            kind="no_route",
            code="NO_ROUTE",
            step=run.step,
            message=f"step {run.step!r} ended well and no arc of it matches: add an arc without "
            f"'when', or remove '{setting}' if the branch may end here",
        )
        return Route(patch=patch, is_handled=False, error=error, notes=notes)
    others = any(arc.on != language_names.PARTIAL for arc in program.list_arcs(run.step))
    unrouted = ["no_route"] if mode == "complete" and others else []
    return Route(patch=patch, notes=[*notes, *unrouted])


def _has_completed(draft: DecisionDraft, name: str) -> bool:
    remembered = draft.state.steps.get(name)
    return remembered is not None and remembered.status is RunStatus.COMPLETED


def _choose_arcs(
    draft: DecisionDraft, run: RunState, names: TemplateScope, status: RunStatus, notes: list[str]
) -> list[Arc]:
    """Choose the arcs to follow, and note once that a condition was undefined."""
    following = draft.program.steps[run.step].next
    if following is None:
        return []
    chosen: list[Arc] = []
    for index, arc in enumerate(following.arcs):
        if status is RunStatus.FAILED and not is_failure_aware(arc, step=run.step):
            continue
        matches, is_undefined = _match_arc(arc, names, run.step, index)
        if is_undefined and evaluation.UNDEFINED_IN_CONDITION not in notes:
            notes.append(evaluation.UNDEFINED_IN_CONDITION)
        if matches:
            chosen.append(arc)
            if following.spec.mode == "exclusive":
                break
    return chosen


def _match_arc(arc: Arc, names: TemplateScope, step: str, index: int) -> tuple[bool, bool]:
    """Tell whether an arc matches, and whether its condition as a whole was undefined."""
    if arc.on is not None and names["event"]["name"] != arc.on:
        return False, False
    if arc.when is None:
        return True, False
    holds, undefined = evaluation.evaluate_condition(
        arc.when, names, step=step, field=f"next.arcs[{index}].when"
    )
    return holds, undefined is not None


def _bind_end_names(
    draft: DecisionDraft, run: RunState, status: RunStatus, error: ErrorObject | None
) -> dict[str, Any]:
    step = draft.state.steps[run.step]
    event = step_end_events.build_step_end_event(draft, step, status=status, error=error)
    output = evaluation.view_output(draft, step, error)
    bound: dict[str, Any] = {"event": event, "output": output}
    if streams.is_stream_step(draft, run.step):
        event["chunks"] = streams.count_chunks(run)
    if run.loop is not None and draft.program.steps[run.step].loop is not None:
        counters = evaluation.find_fanin_counters(draft, run.step)
        if counters is None or counters.get("loop_id") != run.run_id:
            # An epoch that was called off has no result of its own.
            counters = loop_ends.build_fanin_counters(run.loop)
        bound["fanin"] = evaluation.view_fanin(draft, counters)
        event["stats"] = codec.to_builtins(run.loop.stats)
    return bound
