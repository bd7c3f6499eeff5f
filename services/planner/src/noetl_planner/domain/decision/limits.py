"""Limits of an execution: bounds in time (language, 11.1), and limits that a playbook may lower.

Timeouts and deadlines are rendered once, at the beginning, and recorded in the history, so that a
fold has them.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET, structs

from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import execution_events
from noetl_planner.domain.decision import evaluation
from noetl_planner.domain.decision.draft import DecisionDraft, Limits
from noetl_planner.domain.decision.evaluation import Refusal
from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import ExecSpec, Number
from noetl_playbook.templates.expressions import TemplateError, compile_value, describe_location
from noetl_playbook.templates.scope import TemplateScope
from noetl_replay.state import RunState

EXECUTOR = "(executor)"
_SECONDS_MAX = 10 * 365 * 86_400
MAX_STEPS = "max_steps"
MAX_ITEMS = "max_items"
MAX_SHARDS = "max_shards"
MAX_IN_FLIGHT = "max_in_flight"
MAX_CTX_BYTES = "max_ctx_bytes"
# Names of `executor.spec.policy.limits`, and which bound of the planner each lowers.
FIELD_BY_NAME = {
    MAX_STEPS: "activations_max",
    MAX_ITEMS: "items_max",
    MAX_SHARDS: "shards_max",
    MAX_IN_FLIGHT: "in_flight_max",
    MAX_CTX_BYTES: "ctx_bytes_max",
}
# The others are the worker's: they travel with its commands.
WORKER_NAMES = ("max_jumps", "attempts", "delay", "max_delay")


def compute_execution_expiry(draft: DecisionDraft, names: TemplateScope) -> datetime | None:
    """Return until when an execution that begins now may last; raises `Refusal`."""
    return _compute_execution_bound(draft, names, _get_spec(draft).timeout, "spec.timeout")


def _get_spec(draft: DecisionDraft) -> ExecSpec:
    return draft.program.playbook.executor.spec


def _compute_execution_bound(
    draft: DecisionDraft, names: TemplateScope, bound: Number | None, field: str
) -> datetime | None:
    if bound is None:
        return None
    try:
        rendered = compile_value(bound).render(names)
    except TemplateError as error:
        message = describe_location(error, step=EXECUTOR, field=field)
        raise Refusal.for_step("template", EXECUTOR, message) from error
    return draft.now + _parse_duration(rendered, EXECUTOR, field)


def compute_run_expiry(draft: DecisionDraft, step: str) -> datetime | None:
    """Return until when an activation that begins now may last; raises `Refusal`.

    A deadline counts from the execution's start, a timeout from the activation's.
    """
    lifecycle = draft.program.steps[step].spec.policy.lifecycle
    ends = []
    if lifecycle.timeout_s is not None:
        ends.append(draft.now + _render_duration(draft, lifecycle.timeout_s, step, "spec.timeout"))
    if lifecycle.deadline_s is not None:
        field = "spec.policy.lifecycle.deadline_s"
        started_at = draft.state.started_at or draft.now
        ends.append(started_at + _render_duration(draft, lifecycle.deadline_s, step, field))
    return min(ends, default=None)


def compute_execution_deadline(draft: DecisionDraft, names: TemplateScope) -> datetime | None:
    """Return when an execution that begins now is late; raises `Refusal`."""
    return _compute_execution_bound(draft, names, _get_spec(draft).deadline, "spec.deadline")


def compute_run_deadline(draft: DecisionDraft, step: str) -> datetime | None:
    """Return when an activation that begins now is late; raises `Refusal`."""
    deadline = draft.program.steps[step].spec.deadline
    if deadline is None:
        return None
    return draft.now + _render_duration(draft, deadline, step, "spec.deadline")


def append_passed_deadlines(draft: DecisionDraft) -> None:
    """Record what is late by now: an execution or activations; nothing of them changes."""
    state = draft.state
    if state.is_terminal() or state.cancelling_at is not None:
        return
    if state.due_at is not UNSET and draft.now >= state.due_at:
        draft.append_event(execution_events.DeadlinePassed(due_at=state.due_at))
    for run in list(state.runs.values()):
        if run.due_at is not UNSET and draft.now >= run.due_at:
            draft.append_event(
                execution_events.DeadlinePassed(due_at=run.due_at, step=run.step, run_id=run.run_id)
            )


def iterate_deadlines(draft: DecisionDraft) -> Iterator[datetime]:
    """Return when the execution and its activations are late that are not yet."""
    if draft.state.due_at is not UNSET:
        yield draft.state.due_at
    for run in draft.state.runs.values():
        if run.due_at is not UNSET:
            yield run.due_at


def find_run_timeout(draft: DecisionDraft, run: RunState) -> ErrorObject | None:
    """Return the error of an activation whose time is over, or None."""
    if run.expires_at is None or draft.now < run.expires_at:
        return None
    lasted_s = max(0.0, (run.expires_at - run.entered_at).total_seconds())
    return _build_timeout_error(
        run.step,
        f"step {run.step!r} did not end within {lasted_s:g} s: "
        "give it a longer spec.timeout or a later lifecycle.deadline_s",
    )


def find_execution_timeout(draft: DecisionDraft) -> ErrorObject | None:
    """Return the error of an execution whose time is over, or None."""
    state = draft.state
    if state.expires_at is None or state.started_at is None or draft.now < state.expires_at:
        return None
    lasted_s = (state.expires_at - state.started_at).total_seconds()
    return _build_timeout_error(
        None,
        f"the execution did not end within {lasted_s:g} s: give it a longer executor.spec.timeout",
    )


def _render_duration(draft: DecisionDraft, bound: Any, step: str, field: str) -> timedelta:
    names = evaluation.build_scope(draft)
    return _parse_duration(
        evaluation.render_value(bound, names, step=step, field=field), step, field
    )


def _parse_duration(rendered: Any, step: str, field: str) -> timedelta:
    seconds = coercion.coerce_duration_s(rendered)
    if seconds is None or not 0 <= seconds <= _SECONDS_MAX:
        raise Refusal.for_step(
            "validation",
            step,
            f"step {step!r}, field {field!r}: {rendered!r:.80} is not a duration: "
            "write seconds, or 500ms, 30s, 5m, 2h, 1d",
        )
    return timedelta(seconds=seconds)


def _build_timeout_error(step: str | None, message: str) -> ErrorObject:
    return ErrorObject(kind="timeout", code="TIMEOUT", step=step, message=message, retryable=True)


def lower_limits(limits: Limits, playbook_limits: Mapping[str, int]) -> Limits:
    """Return the bounds of one playbook's executions."""
    lower = {
        field: min(getattr(limits, field), max(0, playbook_limits[name]))
        for name, field in FIELD_BY_NAME.items()
        if name in playbook_limits
    }
    return structs.replace(limits, **lower) if lower else limits


def check_in_flight(
    draft: DecisionDraft, rendered: Any, *, is_default: bool, step: str, field: str
) -> int:
    """Admit how many units may run at once; raises `Refusal`.

    A default is lowered with its limit: nobody asked for so many.
    """
    most = draft.limits.in_flight_max
    count = min(rendered, most) if is_default else rendered
    return evaluation.check_bounded_number(
        count, step=step, field=field, least=1, most=most, limit=MAX_IN_FLIGHT
    )


def select_worker_limits(playbook_limits: Mapping[str, int]) -> dict[str, int]:
    """Return the bounds that a pipeline keeps."""
    return {name: playbook_limits[name] for name in WORKER_NAMES if name in playbook_limits}
