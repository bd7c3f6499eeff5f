"""Whether an activation may run."""

from typing import Any

from noetl_contracts.errors import ErrorObject
from noetl_contracts.status import RunStatus
from noetl_planner.domain import boundary, evaluation
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Outcome
from noetl_playbook.scope import Scope
from noetl_replay.state import RunState


def admit(draft: Draft, run: RunState) -> Outcome | None:
    """Return None to let the activation run, else how it ends without having run."""
    if draft.program.steps[run.step].spec.policy.admit is None:
        return None
    return judge(draft, run.step, evaluation.scope(draft, **_activator(draft, run)))


def judge(draft: Draft, step: str, names: Scope) -> Outcome | None:
    """Hold what is known against a step's rules; None lets it run."""
    policy = draft.program.steps[step].spec.policy.admit
    if policy is None or not policy.rules:
        # Without a rule nothing is denied.
        return None
    allowed = not policy.rules[-1].then.allow
    notes: list[str] = []
    for rule in policy.rules:
        holds, undefined = True, None
        if rule.when is not None:
            holds, undefined = evaluation.judge(
                rule.when, names, step=step, field="spec.policy.admit"
            )
        if undefined is not None:
            notes = [evaluation.UNDEFINED_IN_CONDITION]
        if holds:
            allowed = rule.then.allow
            break
    if allowed:
        return None
    if policy.on_deny == "skip":
        return Outcome(status=RunStatus.SKIPPED, notes=notes)
    text = f"step {step!r} is not admitted: no rule of its policy allows it"
    return Outcome(
        status=RunStatus.FAILED,
        error=ErrorObject(kind="policy", code="POLICY", step=step, message=text),
    )


def _activator(draft: Draft, run: RunState) -> dict[str, Any]:
    """Bind how the step that came last to this one ended; the entry has none before it."""
    step = draft.state.steps.get(run.came_from) if run.came_from is not None else None
    if step is None:
        return {}
    event = boundary.event(draft, step, status=step.status, error=step.error)
    return {"event": event, "output": evaluation.output(draft, step)}
