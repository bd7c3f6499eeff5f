"""Increments: where a step goes on reading its source, and how far its success moves the state.

The value that a step begins with is recorded as `state.read`, so that a replay needs no store. The
new value takes effect with the events of the step's success, in one transaction, and only if the
state still has the revision that was read: two runs that overlap cannot both move it.
"""

from typing import Any

from msgspec import UNSET

from noetl_contracts.commands import state_values
from noetl_contracts.commands.state_values import (
    Increment,
    IncrementRange,
    StateChange,
    StateRecord,
    StateType,
    StateValue,
    StateValueError,
)
from noetl_contracts.errors import ErrorObject, get_error_code
from noetl_contracts.events import state_events
from noetl_contracts.requests import facts
from noetl_planner.domain.decision import evaluation
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal
from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import Incremental
from noetl_playbook.sections.increments import get_state_name
from noetl_playbook.templates.scope import TemplateScope
from noetl_replay.state import CommandState, RunState

STATE_CONFLICT = "state_conflict"


def begin_increment(draft: DecisionDraft, run: RunState) -> None:
    """Record which range of its source a run reads, if its step reads increments.

    Raises `StateNeeded` to be decided again, and `Refusal` for values that do not fit.
    """
    incremental = draft.program.steps[run.step].incremental
    if incremental is None:
        return
    try:
        increment = _compute_increment(draft, run, incremental)
    except StateValueError as problem:
        raise Refusal.for_step(
            "validation", run.step, f"step {run.step!r}, field 'incremental': {problem}"
        ) from problem
    draft.append_event(
        state_events.StateRead(step=run.step, run_id=run.run_id, increment=increment)
    )


def _compute_increment(draft: DecisionDraft, run: RunState, incremental: Incremental) -> Increment:
    names = evaluation.build_scope(draft)
    initial = _render_field(incremental.initial, names, run, "initial")
    declared = None if incremental.type is None else StateType(incremental.type)
    name = get_state_name(incremental)
    backfill = draft.state.backfill
    if backfill is not UNSET:
        return _build_backfill(name, declared or state_values.guess_state_type(initial), backfill)
    record = draft.get_state(name)
    value = _choose_value(record, initial, declared)
    since = value
    if record is not None:
        lag = _render_field(incremental.lag, names, run, "lag")
        since = state_values.subtract_lag(value, _parse_lag(lag, value.type))
    return Increment(
        name=name,
        type=value.type,
        since=since.value,
        value=value.value,
        revision=0 if record is None else record.revision,
    )


def _parse_lag(lag: Any, type_: StateType) -> float:
    is_number = type_ is StateType.INTEGER
    parsed_lag = coercion.coerce_integer(lag) if is_number else coercion.coerce_duration_s(lag)
    if parsed_lag is None:
        form = "a whole number" if is_number else "a number of seconds or a duration such as 2h"
        raise StateValueError(f"lag {lag!r:.80} is not {form}")
    return parsed_lag


def _build_backfill(name: str, type_: StateType, backfill: IncrementRange) -> Increment:
    since = state_values.parse_state_value(backfill.since, type_)
    until = state_values.parse_state_value(backfill.until, type_)
    if not state_values.is_later(until, since):
        raise StateValueError(f"the range from {since.value} to {until.value} is empty")
    return Increment(
        name=name,
        type=type_,
        since=since.value,
        value=since.value,
        until=until.value,
        is_backfill=True,
    )


def _choose_value(
    record: StateRecord | None, initial: Any, declared: StateType | None
) -> StateValue:
    """Return where to go on from: the state, else what stands for it before it has a value."""
    if record is None:
        type_ = declared or state_values.guess_state_type(initial)
        return state_values.parse_state_value(initial, type_)
    if declared is not None and record.value.type is not declared:
        raise StateValueError(
            f"state {record.name!r} is of type {record.value.type} and the step declares "
            f"{declared}: set the state anew with noetl state set, or change the type"
        )
    return record.value


def _render_field(value: Any, names: TemplateScope, run: RunState, field: str) -> Any:
    if not coercion.is_template(value):
        return value
    return evaluation.render_value(value, names, step=run.step, field=f"incremental.{field}")


def judge_proposal(
    draft: DecisionDraft, command_state: CommandState, fact: facts.CommandCompleted
) -> state_events.StateChanged | None:
    """Return the change of state that a step's success makes, None where it moves nothing.

    Raises `StateNeeded` to be decided again, and `Refusal` when the state has moved meanwhile or
    the worker has not said how far it read.
    """
    run = draft.state.runs.get(command_state.run_id)
    if run is None or run.increment is UNSET or run.increment.is_backfill:
        return None
    increment, proposed = run.increment, fact.state
    if proposed is UNSET or proposed.name != increment.name:
        raise Refusal.for_step(
            "validation",
            run.step,
            f"step {run.step!r} reads increments, and its worker has not said how far it read: "
            "run it on a worker of this release",
        )
    before = StateValue(type=increment.type, value=increment.value)
    if proposed.value is None or not _is_ahead(proposed.value, before, increment, run):
        return None
    present = draft.get_state(increment.name)
    revision = 0 if present is None else present.revision
    if revision != increment.revision:
        raise _build_conflict(run, increment, present)
    return state_events.StateChanged(
        step=run.step,
        run_id=run.run_id,
        command_id=command_state.command_id,
        name=increment.name,
        value=proposed.value,
        revision=revision + 1,
        previous=None if present is None else present.value,
        rows=proposed.rows,
    )


def move_state(draft: DecisionDraft, event: state_events.StateChanged) -> None:
    """Move a state with the events of the step that read the data."""
    draft.append_event(event)
    draft.change_state(
        StateChange(
            path=draft.state.path,
            name=event.name,
            value=event.value,
            revision=event.revision,
            execution_id=draft.state.execution_id,
            step=event.step,
        )
    )


def _is_ahead(
    proposed: StateValue, before: StateValue, increment: Increment, run: RunState
) -> bool:
    """Tell whether a value lies behind the state; the first one may lie where reading began."""
    try:
        if increment.revision == 0:
            return not state_values.is_later(before, proposed)
        return state_values.is_later(proposed, before)
    except StateValueError as problem:
        raise Refusal.for_step("validation", run.step, str(problem)) from problem


def _build_conflict(run: RunState, increment: Increment, present: StateRecord | None) -> Refusal:
    base = f"revision {increment.revision}" if increment.revision else "no value"
    moved = (
        "no value" if present is None else f"revision {present.revision} ({present.value.value})"
    )
    message = (
        f"step {run.step!r}: state {increment.name!r} had {base} when it began and has {moved} "
        "now: another run or noetl state set changed it meanwhile. Nothing was moved: run it again"
    )
    return Refusal(
        ErrorObject(
            kind=STATE_CONFLICT,
            code=get_error_code(STATE_CONFLICT),
            step=run.step,
            message=message,
            retryable=True,
        )
    )
