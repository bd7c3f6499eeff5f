"""Bounds in time: of the execution, and of one activation of a step (language, 11.1).

Both are rendered once, at the beginning, and recorded: whoever folds the history knows them.
"""

from datetime import datetime, timedelta
from typing import Any

from noetl_contracts.errors import ErrorObject
from noetl_planner.domain import evaluation
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Refusal
from noetl_playbook import coercion
from noetl_playbook.expressions import TemplateError, compile_value, located
from noetl_playbook.scope import Scope
from noetl_replay.state import RunState

EXECUTOR = "(executor)"
_SECONDS_MAX = 10 * 365 * 86_400


def of_execution(draft: Draft, names: Scope) -> datetime | None:
    """Return until when an execution that begins now may last; raises `Refusal`."""
    bound = draft.program.playbook.executor.spec.timeout
    if bound is None:
        return None
    try:
        rendered = compile_value(bound).render(names)
    except TemplateError as error:
        message = located(error, step=EXECUTOR, field="spec.timeout")
        raise Refusal.of("template", EXECUTOR, message) from error
    return draft.now + _duration(rendered, EXECUTOR, "spec.timeout")


def of_run(draft: Draft, step: str) -> datetime | None:
    """Return until when an activation that begins now may last; raises `Refusal`.

    A deadline counts from the execution's start, a timeout from the activation's.
    """
    lifecycle = draft.program.steps[step].spec.policy.lifecycle
    ends = []
    if lifecycle.timeout_s is not None:
        ends.append(draft.now + _rendered(draft, lifecycle.timeout_s, step, "spec.timeout"))
    if lifecycle.deadline_s is not None:
        field = "spec.policy.lifecycle.deadline_s"
        begun = draft.state.started_at or draft.now
        ends.append(begun + _rendered(draft, lifecycle.deadline_s, step, field))
    return min(ends, default=None)


def run_error(draft: Draft, run: RunState) -> ErrorObject | None:
    """Return the error of an activation whose time is over, or None."""
    if run.expires_at is None or draft.now < run.expires_at:
        return None
    lasted_s = max(0.0, (run.expires_at - run.entered_at).total_seconds())
    return _timeout(
        run.step,
        f"step {run.step!r} did not end within {lasted_s:g} s: "
        "give it a longer spec.timeout or a later lifecycle.deadline_s",
    )


def execution_error(draft: Draft) -> ErrorObject | None:
    """Return the error of an execution whose time is over, or None."""
    state = draft.state
    if state.expires_at is None or state.started_at is None or draft.now < state.expires_at:
        return None
    lasted_s = (state.expires_at - state.started_at).total_seconds()
    return _timeout(
        None,
        f"the execution did not end within {lasted_s:g} s: give it a longer executor.spec.timeout",
    )


def _rendered(draft: Draft, bound: Any, step: str, field: str) -> timedelta:
    names = evaluation.scope(draft)
    return _duration(evaluation.render(bound, names, step=step, field=field), step, field)


def _duration(rendered: Any, step: str, field: str) -> timedelta:
    seconds = coercion.duration_s(rendered)
    if seconds is None or not 0 <= seconds <= _SECONDS_MAX:
        raise Refusal.of(
            "validation",
            step,
            f"step {step!r}, field {field!r}: {rendered!r:.80} is not a duration: "
            "write seconds, or 500ms, 30s, 5m, 2h, 1d",
        )
    return timedelta(seconds=seconds)


def _timeout(step: str | None, message: str) -> ErrorObject:
    return ErrorObject(kind="timeout", code="TIMEOUT", step=step, message=message, retryable=True)
